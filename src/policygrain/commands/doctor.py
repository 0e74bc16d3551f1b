"""`policygrain check --machine` and `--slurm`: what a machine or a cluster lacks, before jobs wait for it."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from ..errors import UserError, did_you_mean
from ..files import check_free_space
from ..hub import config_of, download_command
from ..study import Study
from ..text import redacted
from ..train.stopping import parse_time_left

SUBMITTED = ("start_model", "train", "train_arm", "evaluate", "evaluate_all")  # rules whose jobs a cluster runs
EVALUATED = re.compile(r"\b(wildcards|attempt|input|threads)\b|\bif\b.*\belse\b")  # by Snakemake, for each job
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
    start, revision = study.model.start, study.model.revision
    on_hub = start != "tiny" and not Path(start).is_dir()
    if on_hub and not any(config_of(start, revision).parent.glob("*.safetensors")):
        print(
            f"policygrain: note: the weights of {start} are not in this machine's cache. If compute nodes have no "
            f"network, download them here: `{download_command(start, revision)}`.",
            file=sys.stderr,
        )
    uri = study.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI", "")
    if uri.startswith(("http://", "https://")) and "SLURM_JOB_ID" not in os.environ:  # jobs do not need the server
        try:
            urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=10).close()
        except (OSError, ValueError) as error:
            raise UserError(
                f"tracking.uri: MLflow at {redacted(uri)} does not answer: {getattr(error, 'reason', error)}. Start "
                "the server, or correct tracking.uri or MLFLOW_TRACKING_URI."
            ) from None
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
    limits, problems, tried = time_limits(), [], set[str]()
    for rule, resources in read_profile(profile).items():
        words = options_of(resources)
        job = ["srun", "--immediate=60", *(word for word in words if not word.startswith("--ntasks")), "--time=10"]
        job += ["--ntasks-per-node=1", sys.executable, "-m", "policygrain.cli", "check", str(config), "--machine"]
        engine = {"train": study.training.engine, "evaluate": study.evaluation.engine}.get(rule.partition("_")[0])
        job += ["--vllm"] * (engine in ("auto", "vllm") and importlib.util.find_spec("vllm") is not None)
        try:
            output_of("sbatch", "--test-only", *words, "--wrap=true")
            check_limits(resources, limits)
            if (shown := shlex.join(job)) not in tried:
                tried.add(shown)
                print(f"In a job: {shown}", flush=True)
                output_of(*job, capture=False)
        except UserError as error:
            problems.append(f"{profile}, {rule}: {shlex.join(words)}: {error}")
    if problems:
        raise UserError("\n".join(problems))


def read_profile(profile: Path) -> dict[str, dict[str, Any]]:
    """Rule → its resources in Snakemake's units; without expressions, and without rules whose partition is one."""
    from snakemake.resources import Resources

    found = {}
    try:
        content = yaml.safe_load(profile.read_text(encoding="utf-8"))
        own, default = (content.get(key) or {} for key in ("set-resources", "default-resources"))
        settings = [f"--{key}={content[f'slurm-{key}']}" for key in ("qos", "reservation") if f"slurm-{key}" in content]
        for rule in SUBMITTED:
            resources = {**default, **(own.get(rule) or {})}
            evaluated = [key for key, value in resources.items() if isinstance(value, str) and EVALUATED.search(value)]
            if evaluated:
                print(f"{rule}: {', '.join(evaluated)}: evaluated for each job, not checked")
            read = Resources.from_mapping({key: value for key, value in resources.items() if key not in evaluated})
            if "slurm_partition" not in evaluated:
                extra = " ".join([str(resources.get("slurm_extra") or ""), *settings])
                found[rule] = {**dict(read.unwrapped_items()), "slurm_extra": extra.strip()}
                options_of(found[rule])  # raises for what the executor refuses
    except Exception as error:  # those of Snakemake, YAML and files have no common class
        raise UserError(f"{profile}: cannot be read as a Snakemake profile: {error}") from error
    for rule in own.keys() - set(SUBMITTED):
        hint = did_you_mean(rule, SUBMITTED)
        raise UserError(f"{profile}: set-resources: {rule!r} is not a rule that runs as a job.{hint}")
    return found


def options_of(resources: Mapping[str, Any]) -> list[str]:
    """The options of sbatch by which Snakemake's executor requests ``resources``. Raises its errors."""
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string

    class Read(dict[str, Any]):
        __getattr__ = dict.get

    job = SimpleNamespace(resources=Read(resources), threads=1)
    own = {"run_uuid": "x", "slurm_logfile": "x", "comment_str": "x", "workdir": None}
    for option in ("account", "partition"):
        value = resources.get(f"slurm_{option}")
        own[option] = f"--{option}={shlex.quote(str(value))}" if value else ""
    words = shlex.split(get_submit_command(job, own) + set_gres_string(job))
    return words[words.index("--comment") + 2 :]  # without those of every job


def output_of(*command: str, capture: bool = True) -> str:
    """What a command prints. UserError if it fails, with the last line of its standard error if it is captured."""
    # As in jobs: Snakemake removes SLURM_CONF, and nodes may have no network. Inside an allocation, srun with the other
    # variables would start a step of it instead of a job.
    environment = {k: v for k, v in os.environ.items() if k != "SLURM_CONF" and not k.startswith("SLURM_JOB")}
    environment["HF_HUB_OFFLINE"] = "1"
    try:
        done = subprocess.run(command, capture_output=capture, text=True, timeout=SECONDS, check=True, env=environment)
    except FileNotFoundError as error:
        raise UserError(
            f"there is no {command[0]} here. Run this on a login node; on some, `module load slurm` is needed first."
        ) from error
    except subprocess.SubprocessError as error:
        raise UserError(str(getattr(error, "stderr", None) or FAILED).strip().splitlines()[-1]) from error
    return done.stdout or ""


def time_limits() -> dict[str, str]:
    """Partition → time limit, of partitions that are up; the default one also as ""."""
    limits: dict[str, str] = {}
    for line in output_of("sinfo", "--noheader", "--format=%P|%a|%l").splitlines():
        name, up, limit = line.split("|", 2)
        if up == "up":
            limits |= {name.rstrip("*"): limit} | ({"": limit} if name.endswith("*") else {})
    return limits


def check_limits(resources: Mapping[str, Any], limits: Mapping[str, str]) -> None:
    """UserError for a partition that is not up, or allows less time: SLURM would leave such a job pending forever."""
    for name in str(resources.get("slurm_partition") or "").split(","):
        if name not in limits:
            raise UserError(f"partition {name!r} is not up; see `sinfo -s`.")
        minutes = (parse_time_left(limits[name]) or math.inf) / 60
        if (resources.get("runtime") or 0) > minutes:
            raise UserError(f"partition {name or '(the default)'} allows {minutes:.0f} minutes; set runtime to that.")
