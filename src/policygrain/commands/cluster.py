"""SLURM: checks of the profile's requests and of nodes, and the launch command of a run with several processes."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import humanfriendly
import yaml

from ..errors import UserError, did_you_mean
from ..study import Study
from ..train.stopping import parse_time_left
from .jobs import SUBMITTED

START_TIMEOUT = 60  # seconds to wait for a free node
JOB_TIMEOUT = 420  # further seconds to import torch on a slow file system, and to start vLLM
# sbatch option → Snakemake resource.
KEYS = {option: option for option in ("qos", "constraint", "gres", "nodes")} | {
    "partition": "slurm_partition",
    "account": "slurm_account",
    "ntasks": "tasks",
    "ntasks-per-node": "tasks_per_node",
    "cpus-per-task": "cpus_per_task",
    "mem": "mem_mb",
    "mem-per-cpu": "mem_mb_per_cpu",
    "clusters": "cluster",
    "time": "runtime",
}
SETTINGS = ("qos", "reservation")  # options that the executor also takes for all jobs: `slurm-qos` in the profile
PROCESSES = ("nodes", "ntasks", "ntasks-per-node", "time")  # a check is one process and takes minutes
UNREADABLE: tuple[type[Exception], ...] = (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError)
UNREADABLE += (RecursionError, humanfriendly.InvalidSize, humanfriendly.InvalidTimespan)


@dataclass(frozen=True)
class Request:
    """The resources that the profile requests for a rule, or by default."""

    rule: str
    resources: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the executor, by option of sbatch

    @property
    def expressions(self) -> list[str]:
        """Keys whose values Snakemake evaluates for each job."""
        pattern = r"\b(wildcards|attempt|input|threads)\b|\bif\b.*\belse\b"
        return [key for key, value in self.resources.items() if isinstance(value, str) and re.search(pattern, value)]

    def text(self, key: str) -> str | None:
        """The value of ``key``; None if it is missing or an expression."""
        value = self.resources.get(key)
        return None if value in (None, "") or key in self.expressions else str(value)

    @cached_property
    def options(self) -> dict[str, str]:
        """Options of sbatch. Raises what humanfriendly raises for a size or time that cannot be read."""
        values = {option: self.text(key) for option, key in KEYS.items()}
        if values["mem-per-cpu"]:
            values["mem"] = None  # the executor submits one of the two
        elif values["mem"] is None and (size := self.text("mem")):
            values["mem"] = str(math.ceil(humanfriendly.parse_size(size) / 10**6))
        if (limit := values["time"]) and not limit.isdecimal():
            values["time"] = str(math.ceil(humanfriendly.parse_timespan(limit) / 60))
        model, gpus = self.text("gpu_model"), self.text("gpu")
        if (model or gpus not in (None, "0")) and not values["gres"]:
            values["gpus"] = ":".join(filter(None, [model, str(int(gpus or 1))]))
        values |= {option: str(value) for option, value in self.settings.items() if value}
        return {option: value for option, value in values.items() if value}

    def words(self, leave_out: Collection[str] = ()) -> tuple[str, ...]:
        """Command-line options except ``leave_out``; without `nodes`, GPUs are the number per node."""
        options = {option: value for option, value in self.options.items() if option not in leave_out}
        if "nodes" in leave_out and "gpus" in options:
            *model, gpus = options["gpus"].split(":")
            least = int(self.options.get("nodes", "1").partition("-")[0])  # of a range such as 1-2
            options["gpus"] = ":".join([*model, str(math.ceil(int(gpus) / least))])
        extra = shlex.split(self.text("slurm_extra") or "")
        return (*(f"--{option}={value}" for option, value in options.items()), *extra)


def check_cluster(study: Study, config: Path, profile: Path) -> None:
    """Check the profile's requests, then run `policygrain check` on a node of each kind, from a login node.

    Prints all problems. UserError if there are any.
    """
    requests, limits = read_profile(profile), time_limits()
    problems = 0
    by_node_options: dict[tuple[str, ...], list[Request]] = {}
    for request in requests:
        if request.expressions:
            print(f"{request.rule}: {', '.join(request.expressions)}: evaluated for each job, not checked")
        if "slurm_partition" in request.expressions:
            continue
        if problem := refused(request, limits):
            print(f"{profile}, {request.rule}: {problem}", file=sys.stderr)
            problems += 1
        else:
            by_node_options.setdefault(request.words((*PROCESSES, "cpus-per-task", "mem", "mem-per-cpu")), []).append(
                request
            )
    with_vllm = rules_with_vllm(study)
    for node_options, same_node in by_node_options.items():
        # vLLM needs the memory and CPUs that its rule requests.
        vllm_request = next((request for request in same_node if request.rule in with_vllm), None)
        options = vllm_request.words(PROCESSES) if vllm_request else node_options
        problems += not passes_on_a_node(options, config, with_vllm=vllm_request is not None)
    if problems:
        raise UserError(f"{profile}: {problems} problem{'s' if problems > 1 else ''} on this cluster, see above.")


def output_of(*command: str, timeout: float = 60, without: str | None = None) -> str:
    """Standard output of a command; UserError with the last line of its standard error if it fails or times out.

    Environment variables that begin with ``without`` are removed; ``timeout`` is in seconds.
    """
    environment = {key: value for key, value in os.environ.items() if not (without and key.startswith(without))}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=environment)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{command[0]} did not answer within {timeout:.0f} s") from error
    if done.returncode != 0:
        raise UserError((done.stderr.strip().splitlines() or [f"{command[0]} failed with {done.returncode}"])[-1])
    return done.stdout


def time_limits() -> dict[str, str]:
    """Partition → time limit, of partitions that are up; the default one also as "". UserError without SLURM."""
    if shutil.which("sinfo") is None:
        raise UserError(
            "--slurm: there is no sinfo here. Run this on a login node of the cluster; on some, `module load slurm` is "
            "needed first."
        )
    limits: dict[str, str] = {}
    # Snakemake removes SLURM_CONF inside jobs, too.
    lines = output_of("sinfo", "--noheader", "--format=%P|%a|%l", without="SLURM_CONF").splitlines()
    for name, up, limit in (line.split("|", 2) for line in lines):
        if up == "up":
            limits |= {name.rstrip("*"): limit} | ({"": limit} if name.endswith("*") else {})
    return limits


def read_profile(profile: Path) -> list[Request]:
    """The requests of a profile: one per rule with resources of its own, and `default-resources` if a rule has none."""
    try:
        content = yaml.safe_load(profile.read_text(encoding="utf-8"))
        shared = dict(content.get("default-resources") or {})
        rules = {rule: dict(resources or {}) for rule, resources in (content.get("set-resources") or {}).items()}
        settings = {option: content.get(f"slurm-{option}") for option in SETTINGS}
        requests = [Request(rule, shared | resources, settings) for rule, resources in rules.items()]
        if not set(SUBMITTED) <= set(rules):
            requests.insert(0, Request("default-resources", shared, settings))
        for request in requests:  # raises if a value cannot be parsed
            request.words(PROCESSES)
    except UNREADABLE as error:
        raise UserError(f"{profile}: cannot be read as a Snakemake profile: {error}") from error
    for rule, own in {"default-resources": shared, **rules}.items():
        resources = shared | own
        if resources.get("mpi") and not str(resources.get("nodes", 1)).isdecimal():
            raise UserError(f"{profile}: {rule}: nodes must be a number where mpi is set, which starts the processes.")
    for rule in set(rules) - set(SUBMITTED):
        raise UserError(
            f"{profile}: set-resources: {rule!r} is not a rule that runs as a job.{did_you_mean(rule, SUBMITTED)} "
            f"Jobs: {', '.join(SUBMITTED)}."
        )
    return requests


def refused(request: Request, limits: Mapping[str, str]) -> str | None:
    """Why SLURM would reject or never start jobs with these resources; None if it would start them."""
    try:
        output_of("sbatch", "--test-only", *request.words(), "--wrap=true")
    except UserError as error:
        options = shlex.join(request.words()) or "a job without options"
        return f"SLURM refuses {options}: {error}. `sinfo -o '%P %l %c %m %G'` lists what each partition has."
    # SLURM accepts these jobs, but they stay pending forever.
    minutes = int(request.options.get("time", 0))
    for name in request.options.get("partition", "").split(","):
        if name not in limits:
            return f"partition {name!r} is not up; see `sinfo -s`."
        limit = (parse_time_left(limits[name]) or math.inf) / 60
        if minutes > limit:
            return (
                f"requests {minutes} minutes, but partition {name or '(the default)'} allows {limit:.0f}. Set runtime "
                f"to at most {limit:.0f}."
            )
    return None


def rules_with_vllm(study: Study) -> set[str]:
    """Names of the rules whose jobs start vLLM."""
    if importlib.util.find_spec("vllm") is None:
        return set()
    training, evaluation = (s.engine in ("auto", "vllm") for s in (study.training, study.evaluation))
    return ({"train", "estimators", "rounds"} if training else set()) | ({"evaluate"} if evaluation else set())


def passes_on_a_node(options: Collection[str], config: Path, with_vllm: bool) -> bool:
    """Run `policygrain check` in a job with these options and show its output; False if it fails."""
    command = ["srun", "--job-name=check", "--ntasks=1", "--time=10", f"--immediate={START_TIMEOUT}", *options]
    command += [sys.executable, "-m", "policygrain.cli", "check", str(config), "--machine"]
    command += ["--vllm"] if with_vllm else []
    print(f"On a node: {shlex.join(command)}", flush=True)
    # Inside an allocation srun would start a step of it instead of a job. Nodes may have no network.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_JOB")}
    environment["HF_HUB_OFFLINE"] = "1"
    try:
        done = subprocess.run(command, env=environment, timeout=START_TIMEOUT + JOB_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        print(
            f"The check did not end within {START_TIMEOUT + JOB_TIMEOUT} s: the file system may be slow.",
            file=sys.stderr,
        )
        return False
    if done.returncode:
        print(
            "The check failed. If no job started, the cluster may be full: try again later. Otherwise check that nodes "
            "see this folder, its environment, data (POLICYGRAIN_DATA) and models (HF_HOME).",
            file=sys.stderr,
        )
    return done.returncode == 0


def launch(resources: Mapping[str, Any]) -> str:
    """Launch command of the processes that train one run together; empty for a single process (no `mpi`)."""
    if not resources.get("mpi"):
        return ""
    nodes = resources.get("nodes")
    tasks = resources.get("tasks") or (nodes or 1) * resources.get("tasks_per_node", 1)
    where = f"--nodes={nodes} " if nodes else ""
    gpus = f"--gpus={resources['gpu']} " if resources.get("gpu") else ""
    # A step does not inherit the job's CPUs per task. If a rank is killed, the others must not wait for it.
    cpus = f"--cpus-per-task={resources.get('cpus_per_task', 1)} --kill-on-bad-exit=1"
    return f"{resources['mpi']} {where}--ntasks={tasks} {cpus} {gpus}"
