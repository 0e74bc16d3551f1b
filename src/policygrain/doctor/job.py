"""A test job on the nodes that the study's jobs would use: shared folders, environment, GPUs, start of vLLM."""

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
from .slurm import output_of

START_TIMEOUT = 60  # seconds until the job must have started; on a full cluster it does not
JOB_TIMEOUT = 120  # further seconds to import this package, and torch on a node with GPUs
ENGINE_TIMEOUT = 300  # further seconds to start vLLM

# Run inside the job by this environment's interpreter: reads the file `here`, writes `there`, prints a JSON report.
PROBE = """
import json, os, pathlib, platform, sys
folder, gpus, engine = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
get = os.environ.get
report = {"node": get("SLURMD_NODENAME", platform.node()), "gpus": get("CUDA_VISIBLE_DEVICES", "")}
try:
    report["read"] = (folder / "here").read_text()
    (folder / "there").write_text("job")
except OSError as error:
    report["read"] = str(error)
report["missing"] = [path for path in sys.argv[4:] if not os.path.exists(path)]
try:
    import policygrain
    if gpus:
        import torch
        report["torch"] = torch.cuda.device_count()
except Exception as error:
    report["error"] = str(error)
if engine and "error" not in report:
    try:
        from policygrain.doctor.engine import sample_one_token
        sample_one_token()
        report["engine"] = ""
    except BaseException as error:
        report["engine"] = (str(error) or type(error).__name__).strip().splitlines()[-1]
print("DOCTOR" + json.dumps(report))
"""


def try_job(
    request: ResourceRequest, results: Path, folders: Sequence[Path] = (), with_engine: bool = False
) -> Finding:
    """Run a test job: does it start, see ``folders`` and this environment, get its GPUs, and does vLLM start there?"""
    place = " ".join(request.place) or "default partition"
    folder = results.resolve() / f".doctor-{uuid.uuid4().hex[:8]}"
    token = uuid.uuid4().hex
    try:
        folder.mkdir(parents=True)
        (folder / "here").write_text(token)
        report = _run_job(request, folder, folders, with_engine)
        written = (folder / "there").exists()
    except OSError as error:
        return Finding("job", f"{folder}: {error.strerror}", "wrong", "Run this where results may be written.")
    except ValueError:
        return Finding("job", f"{place}: srun printed something else", "wrong", "Try `srun hostname` by hand.")
    except UserError as error:
        return _job_failed(request, place, str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seen = f"{place}: a job on {report['node']}"
    if report["read"] != token or not written:
        change = "Work in a folder that all nodes share (often under /home, /work or /scratch, not /tmp)."
        return Finding("job", f"{seen} does not see {results.resolve()}", "wrong", change)
    if report["missing"]:
        change = "Use a folder that all nodes share; POLICYGRAIN_DATA and HF_HOME name those of data and models."
        return Finding("job", f"{seen} does not see {', '.join(report['missing'])}", "wrong", change)
    if "error" in report:
        change = (
            "Keep the environment (.venv) in a folder that all nodes share, and run `make setup` on a node like these."
        )
        return Finding("job", f"{seen} cannot use this environment: {report['error']}", "wrong", change)
    if request.gpus and not report["gpus"]:
        return Finding(
            "gpu", f"{seen} was given no GPU", "wrong", "Ask the administrators how to request GPUs (gres?)."
        )
    if request.gpus and report["torch"] < request.gpus:
        change = "Run `make setup FLAVOUR=gpu` for the CUDA build; if that is installed, the driver is too old for it."
        return Finding(
            "gpu", f"{seen} was given {report['gpus']}, but torch sees {report['torch']} GPUs", "wrong", change
        )
    if report.get("engine"):
        change = f"Give {request.rule} a GPU, or set the study's engine to transformers."
        return Finding("vllm", f"{seen} cannot start vLLM: {report['engine']}", "wrong", change)
    also = [f"GPU {report['gpus']}"] * bool(request.gpus) + ["vLLM starts"] * ("engine" in report)
    return Finding("job", f"{seen} sees folder and environment{''.join(f', {what}' for what in also)}")


def _run_job(request: ResourceRequest, folder: Path, folders: Sequence[Path], with_engine: bool) -> dict[str, Any]:
    """The job's report. ValueError if its output has none, UserError if the job does not run."""
    options = ["--job-name=doctor", "--ntasks=1", "--time=10", f"--immediate={START_TIMEOUT}", *request.place]
    if with_engine:  # vLLM needs the memory and CPUs that the rule requests
        options += request.size
    probe = [sys.executable, "-c", PROBE, str(folder), str(request.gpus), str(int(with_engine))]
    probe += [str(path.resolve()) for path in folders]
    timeout = START_TIMEOUT + JOB_TIMEOUT + (ENGINE_TIMEOUT if with_engine else 0)
    # Without SLURM_JOB… variables: inside an allocation srun would start a step of it instead of a job.
    answer = output_of("srun", *options, *probe, timeout=timeout, without="SLURM_JOB")
    _, found, rest = answer.partition("DOCTOR")
    if not found:
        raise ValueError(answer)
    report: dict[str, Any] = json.JSONDecoder().raw_decode(rest)[0]
    return report


def _job_failed(request: ResourceRequest, place: str, error: str) -> Finding:
    if re.search(r"immediate|Resources temporarily unavailable", error):
        change = "The cluster may be full; try again later. `srun --test-only` shows when such a job would start."
        return Finding("job", f"{place}: not tried, no job started within {START_TIMEOUT} s", "note", change)
    if "not answer" in error:
        change = "Check how long Python takes to start there: on a slow file system importing torch takes minutes."
        return Finding("job", f"{place}: not finished, {error}", "note", change)
    by_hand = " ".join(["srun", *request.place, sys.executable, "--version"])
    change = f"Try `{by_hand}`. Check the account, the partition, and whether nodes see that interpreter."
    return Finding("job", f"{place}: {error}", "wrong", change)
