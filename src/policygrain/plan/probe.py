"""`python -m policygrain.plan.probe FOLDER GPUS ENGINE PATH...`: run by a test job, says what a node lacks."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

MARK = "DOCTOR"  # before the answer, which other lines may precede


def lacks(folder: Path, gpus: int, with_engine: bool, paths: Sequence[str]) -> tuple[str, str]:
    """Problem on this node and its remedy; two empty texts if there is none.

    Reads `here` in ``folder`` and copies it to `there`, where the login node looks for it.
    """
    try:
        (folder / "there").write_text((folder / "here").read_text())
    except OSError:
        change = "Work in a folder that all nodes share (often under /home, /work or /scratch, not /tmp)."
        return f"does not see {folder.parent}", change
    if missing := [path for path in paths if not os.path.exists(path)]:
        change = "Use a folder that all nodes share; POLICYGRAIN_DATA and HF_HOME name those of data and models."
        return f"does not see {', '.join(missing)}", change
    if gpus:
        import torch

        granted = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if not granted:
            return "was given no GPU", "Ask the administrators how to request GPUs (gres?)."
        if torch.cuda.device_count() < gpus:
            change = "Run `make setup FLAVOUR=gpu` for the CUDA build; if that is installed, the driver is too old."
            return f"was given GPU {granted}, but torch sees {torch.cuda.device_count()} GPUs", change
    if with_engine:
        try:
            sample_one_token()
        except BaseException as error:
            last = (str(error) or type(error).__name__).strip().splitlines()[-1]
            return f"cannot start vLLM: {last}", "Give the rule a GPU, or set the study's engine to transformers."
    return "", ""


def sample_one_token() -> None:
    """Start vLLM with a tiny model and sample a token. Raises whatever vLLM raises if it does not start."""
    from ..model import tiny
    from ..rollout.engine import Request
    from ..rollout.open import check_vllm_runs_here
    from ..rollout.vllm_engine import VllmEngine
    from ..study.schema import TinyModel

    check_vllm_runs_here()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = tiny.character_tokenizer()
        tiny.build(TinyModel(), tokenizer, 0).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        VllmEngine(folder, kv_gib=0.1).generate([Request([3, 4, 5], 0, 1)])


if __name__ == "__main__":
    answer = lacks(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1", sys.argv[4:])
    print(MARK + json.dumps([os.environ.get("SLURMD_NODENAME", platform.node()), *answer]))
