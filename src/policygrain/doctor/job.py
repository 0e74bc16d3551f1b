"""A job of one line, run where the study's jobs would: what it sees there."""

from __future__ import annotations

import json
import re
import shutil
import sys
import uuid
from pathlib import Path

from ..errors import UserError
from .finding import Finding
from .profile import Wish
from .slurm import ask

START_SECONDS = 60  # for a job of one line; a cluster that is full does not start one

# Run by the interpreter of this environment inside a job: reads what was written here and writes beside it.
PROBE = """
import json, os, pathlib, platform, sys
folder, gpus = pathlib.Path(sys.argv[1]), int(sys.argv[2])
told = {"node": os.environ.get("SLURMD_NODENAME", platform.node()), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
try:
    told["read"] = (folder / "here").read_text()
    (folder / "there").write_text("job")
except OSError as error:
    told["read"] = str(error)
try:
    import policygrain
    if gpus:
        import torch
        told["torch"] = torch.cuda.device_count()
except Exception as error:
    told["error"] = str(error)
print("DOCTOR" + json.dumps(told))
"""


def try_job(wish: Wish, results: Path) -> Finding:
    """A job of one line: does it start, does it see this folder and this environment, has it its GPUs?"""
    place = " ".join(wish.place) or "the default place"
    folder = results.resolve() / f".doctor-{uuid.uuid4().hex[:8]}"
    secret = uuid.uuid4().hex
    options = ["--job-name=doctor", "--ntasks=1", "--time=5", f"--immediate={START_SECONDS}", *wish.place]
    try:
        folder.mkdir(parents=True)
        (folder / "here").write_text(secret)
        probe = [sys.executable, "-c", PROBE, str(folder), str(wish.gpus)]
        answer = ask("srun", *options, *probe, timeout=START_SECONDS + 120)
        told = json.loads(answer.split("DOCTOR", 1)[1])
        written = (folder / "there").exists()
    except OSError as error:
        return Finding("job", f"{folder}: {error.strerror}", "wrong", "Run this where results may be written.")
    except (IndexError, ValueError):
        return Finding("job", f"{place}: srun printed something else", "wrong", "Try `srun hostname` by hand.")
    except UserError as error:
        if re.search(r"immediate|Resources temporarily unavailable|not answer", str(error)):
            change = "The cluster may be full; try again later, or with `squeue --start`."
            return Finding("job", f"{place}: no job started within {START_SECONDS} s", "note", change)
        change = (
            "Try the same by hand: `srun " + " ".join([*wish.place, "hostname"]) + "`; account, partition or a folder"
        )
        return Finding("job", f"{place}: {error}", "wrong", f"{change} that compute nodes do not see is wrong.")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seen = f"{place}: a job on {told['node']}"
    if told["read"] != secret or not written:
        change = "Work in a folder that all nodes share (often under /home, /work or /scratch, not /tmp)."
        return Finding("job", f"{seen} does not see {results.resolve()}", "wrong", change)
    if "error" in told:
        change = (
            "Keep the environment (.venv) in a folder that all nodes share, and run `make setup` on a node like these."
        )
        return Finding("job", f"{seen} cannot use this environment: {told['error']}", "wrong", change)
    if wish.gpus and not told["gpus"]:
        return Finding(
            "gpu", f"{seen} was given no GPU", "wrong", "Ask the administrators how GPUs are asked for (gres?)."
        )
    if wish.gpus and told["torch"] < wish.gpus:
        change = "Run `make setup FLAVOUR=gpu` for the CUDA build; if it is that one, the driver is too old for it."
        return Finding("gpu", f"{seen} was given {told['gpus']}, but torch sees {told['torch']} GPUs", "wrong", change)
    return Finding("job", f"{seen} sees folder and environment" + (f", GPU {told['gpus']}" if wish.gpus else ""))
