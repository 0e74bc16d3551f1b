"""A job of one line, run where the study's jobs would: what it sees there, and whether an engine starts."""

from __future__ import annotations

import json
import re
import shutil
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from .finding import Finding
from .profile import ResourceRequest
from .slurm import ask

START_TIMEOUT = 60  # for a job of one line; a cluster that is full does not start one
JOB_TIMEOUT = 120  # seconds until it has imported this package, torch where it has GPUs
ENGINE_TIMEOUT = 300  # … and more until an engine has started

# Run by the interpreter of this environment inside a job: reads what was written here and writes beside it.
PROBE = """
import json, os, pathlib, platform, sys
folder, gpus, engine = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
told = {"node": os.environ.get("SLURMD_NODENAME", platform.node()), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
try:
    told["read"] = (folder / "here").read_text()
    (folder / "there").write_text("job")
except OSError as error:
    told["read"] = str(error)
told["missing"] = [path for path in sys.argv[4:] if not os.path.exists(path)]
try:
    import policygrain
    if gpus:
        import torch
        told["torch"] = torch.cuda.device_count()
except Exception as error:
    told["error"] = str(error)
if engine and "error" not in told:
    try:
        from policygrain.doctor.engine import one_token
        one_token()
        told["engine"] = ""
    except BaseException as error:
        told["engine"] = (str(error) or type(error).__name__).strip().splitlines()[-1]
print("DOCTOR" + json.dumps(told))
"""


def try_job(
    request: ResourceRequest, results: Path, folders: Sequence[Path] = (), with_engine: bool = False
) -> Finding:
    """A small job: does it start, does it see these folders and this environment, has it its GPUs, does vLLM start?"""
    place = " ".join(request.place) or "the default place"
    folder = results.resolve() / f".doctor-{uuid.uuid4().hex[:8]}"
    secret = uuid.uuid4().hex
    try:
        folder.mkdir(parents=True)
        (folder / "here").write_text(secret)
        told = _ask_a_job(request, folder, folders, with_engine)
        written = (folder / "there").exists()
    except OSError as error:
        return Finding("job", f"{folder}: {error.strerror}", "wrong", "Run this where results may be written.")
    except ValueError:
        return Finding("job", f"{place}: srun printed something else", "wrong", "Try `srun hostname` by hand.")
    except UserError as error:
        return _did_not_work(request, place, str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seen = f"{place}: a job on {told['node']}"
    if told["read"] != secret or not written:
        change = "Work in a folder that all nodes share (often under /home, /work or /scratch, not /tmp)."
        return Finding("job", f"{seen} does not see {results.resolve()}", "wrong", change)
    if told["missing"]:
        change = "Put it where all nodes see it; POLICYGRAIN_DATA and HF_HOME say where sets and models lie."
        return Finding("job", f"{seen} does not see {', '.join(told['missing'])}", "wrong", change)
    if "error" in told:
        change = (
            "Keep the environment (.venv) in a folder that all nodes share, and run `make setup` on a node like these."
        )
        return Finding("job", f"{seen} cannot use this environment: {told['error']}", "wrong", change)
    if request.gpus and not told["gpus"]:
        return Finding(
            "gpu", f"{seen} was given no GPU", "wrong", "Ask the administrators how GPUs are asked for (gres?)."
        )
    if request.gpus and told["torch"] < request.gpus:
        change = "Run `make setup FLAVOUR=gpu` for the CUDA build; if it is that one, the driver is too old for it."
        return Finding("gpu", f"{seen} was given {told['gpus']}, but torch sees {told['torch']} GPUs", "wrong", change)
    if told.get("engine"):
        change = f"Give {request.rule} a GPU, or set the study's engine to transformers."
        return Finding("vllm", f"{seen} cannot start vLLM: {told['engine']}", "wrong", change)
    also = [f"GPU {told['gpus']}"] * bool(request.gpus) + ["vLLM starts"] * ("engine" in told)
    return Finding("job", f"{seen} sees folder and environment{''.join(f', {what}' for what in also)}")


def _ask_a_job(request: ResourceRequest, folder: Path, folders: Sequence[Path], with_engine: bool) -> dict[str, Any]:
    """What the job says of itself. ValueError when it says something else, UserError when it does not come to that."""
    options = ["--job-name=doctor", "--ntasks=1", "--time=10", f"--immediate={START_TIMEOUT}", *request.place]
    if with_engine:  # which needs the room that its rule asks for
        options += request.size
    probe = [sys.executable, "-c", PROBE, str(folder), str(request.gpus), str(int(with_engine))]
    probe += [str(path.resolve()) for path in folders]
    patience = START_TIMEOUT + JOB_TIMEOUT + (ENGINE_TIMEOUT if with_engine else 0)
    # Inside an allocation srun would start a step of that.
    answer = ask("srun", *options, *probe, timeout=patience, without="SLURM_JOB")
    _, found, rest = answer.partition("DOCTOR")
    if not found:
        raise ValueError(answer)
    told: dict[str, Any] = json.JSONDecoder().raw_decode(rest)[0]
    return told


def _did_not_work(request: ResourceRequest, place: str, error: str) -> Finding:
    if re.search(r"immediate|Resources temporarily unavailable", error):
        change = "The cluster may be full; ask again later. `srun --test-only` says when such a job would start."
        return Finding("job", f"{place}: not tried, no job started within {START_TIMEOUT} s", "note", change)
    if "not answer" in error:
        change = "Does Python start quickly there? An environment on a slow file system takes minutes to import torch."
        return Finding("job", f"{place}: not tried to the end, {error}", "note", change)
    by_hand = " ".join(["srun", *request.place, sys.executable, "--version"])
    change = f"Try `{by_hand}`. Wrong may be the account, the partition, or that nodes do not see that interpreter."
    return Finding("job", f"{place}: {error}", "wrong", change)
