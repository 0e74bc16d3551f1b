"""`policygrain check --machine` and `--slurm`: what a machine or a cluster lacks, before jobs wait for it."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from ..errors import UserError, did_you_mean
from ..files import check_free_space
from ..study import Study
from ..text import redacted

SUBMITTED = ("start_model", "train", "train_arm", "evaluate", "evaluate_all")  # rules whose jobs a cluster runs
SECONDS = 480  # a minute to wait for a free node, and time to import torch on a slow file system
FAILED = (
    f"failed, or did not end within {SECONDS} s, see above. If no job started, the cluster may be full: try later. "
    "Otherwise check that nodes see this folder, its environment, data (POLICYGRAIN_DATA) and models (HF_HOME)."
)


def check_machine(study: Study, results: Path, vllm: bool = False) -> None:
    """UserError if free space in ``results``, the MLflow server, GPUs, or with ``vllm`` a GPU for vLLM are missing."""
    import torch

    from ..model.device import device
    from ..model.engine import check_vllm_runs_here

    check_free_space(results)
    uri = study.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI", "")
    if uri.startswith(("http://", "https://")) and "SLURM_JOB_ID" not in os.environ:  # jobs do not need the server
        try:
            urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=10).close()
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise UserError(f"tracking.uri: MLflow at {redacted(uri)} does not answer: {reason}.") from None
    device()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    visible = [gpu for gpu in named if gpu not in ("", "-1", "NoDevFiles")]
    if torch.cuda.device_count() < len(visible):
        raise UserError(
            f"CUDA_VISIBLE_DEVICES lists {len(visible)} GPUs, but torch sees {torch.cuda.device_count()}. Run "
            "`make setup FLAVOUR=gpu` for the CUDA build; if that is installed, the driver is too old."
        )
    if vllm:
        check_vllm_runs_here()


def check_cluster(study: Study, config: Path, profile: Path) -> None:
    """Ask SLURM about each rule's request, then run `policygrain check` in such a job; from a login node.

    UserError with all problems.
    """
    problems, tried = [], set[str]()
    for rule, words in requests(profile).items():
        job = ["srun", "--immediate=60", *(word for word in words if not word.startswith("--ntasks")), "--time=10"]
        job += ["--ntasks-per-node=1", sys.executable, "-m", "policygrain.cli", "check", str(config), "--machine"]
        engine = {"train": study.training.engine, "evaluate": study.evaluation.engine}.get(rule.partition("_")[0])
        job += ["--vllm"] * (engine in ("auto", "vllm") and importlib.util.find_spec("vllm") is not None)
        try:
            ask("sbatch", "--test-only", *words, "--wrap=true")
            if (shown := shlex.join(job)) not in tried:
                tried.add(shown)
                print(f"In a job: {shown}", flush=True)
                ask(*job, capture=False)
        except UserError as error:
            problems.append(f"{profile}, {rule}: {shlex.join(words)}: {error}")
    if problems:
        raise UserError("\n".join(problems))


def requests(profile: Path) -> dict[str, list[str]]:
    """Rule → the options of sbatch by which Snakemake's executor requests its resources. UserError for wrong ones."""
    from snakemake.resources import Resources
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string

    class Read(dict[str, Any]):
        __getattr__ = dict.get

    try:
        content, found = yaml.safe_load(profile.read_text(encoding="utf-8")), {}
        own, default = (content.get(key) or {} for key in ("set-resources", "default-resources"))
        extra = [f"--{key}={content[f'slurm-{key}']}" for key in ("qos", "reservation") if f"slurm-{key}" in content]
        for rule in SUBMITTED:
            read = Resources.from_mapping({**default, **(own.get(rule) or {})})
            job = SimpleNamespace(resources=Read(read.unwrapped_items()), threads=1)
            names = ("account", "partition")
            options = {
                n: f"--{n}={shlex.quote(str(v))}" if (v := job.resources.get(f"slurm_{n}")) else "" for n in names
            }
            fixed = {"run_uuid": "x", "slurm_logfile": "x", "comment_str": "x", "workdir": None}
            words = shlex.split(get_submit_command(job, {**fixed, **options}) + set_gres_string(job))
            found[rule] = [*words[words.index("--comment") + 2 :], *extra]
    except Exception as error:  # those of Snakemake, its executor, YAML and files have no common class
        raise UserError(f"{profile}: cannot be read as a Snakemake profile: {error}") from error
    for rule in own.keys() - set(SUBMITTED):
        hint = did_you_mean(rule, SUBMITTED)
        raise UserError(f"{profile}: set-resources: {rule!r} is not a rule that runs as a job.{hint}")
    return found


def ask(*command: str, capture: bool = True) -> None:
    """Run a command of SLURM. UserError if it fails, with the last line of its standard error if it is captured."""
    # As in jobs: Snakemake removes SLURM_CONF, and nodes may have no network. Inside an allocation, srun with the other
    # variables would start a step of it instead of a job.
    environment = {k: v for k, v in os.environ.items() if k != "SLURM_CONF" and not k.startswith("SLURM_JOB")}
    environment["HF_HUB_OFFLINE"] = "1"
    try:
        subprocess.run(command, capture_output=capture, text=True, timeout=SECONDS, check=True, env=environment)
    except FileNotFoundError as error:
        raise UserError(
            f"there is no {command[0]} here. Run this on a login node; on some, `module load slurm` is needed first."
        ) from error
    except subprocess.SubprocessError as error:
        raise UserError(str(getattr(error, "stderr", None) or FAILED).strip().splitlines()[-1]) from error
