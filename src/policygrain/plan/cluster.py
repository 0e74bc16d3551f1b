"""`policygrain doctor --slurm`: whether SLURM accepts the profile's requests, and whether a job sees what it needs."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shlex
import shutil
import sys
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import humanfriendly
import yaml
from huggingface_hub.constants import HF_HUB_CACHE

from ..errors import UserError, did_you_mean
from ..study import Study
from ..tasks.set_files import data_root
from ..train.stopping import parse_time_left
from .jobs import SUBMITTED
from .machine import Findings, check_disk, check_needs, problem_sets, read_study
from .probe import MARK
from .slurm import output_of

COMMANDS = ("sinfo", "sbatch", "srun", "squeue", "scancel")
FIRST_STATUS_CHECK = 40  # seconds after submission; the executor's default
START_TIMEOUT = 60  # seconds until the test job must have started; on a full cluster it does not
JOB_TIMEOUT = 120  # further seconds to import this package, and torch on a node with GPUs
ENGINE_TIMEOUT = 300  # further seconds to start vLLM
# Option of sbatch → resource of Snakemake.
KEYS = {option: option for option in ("qos", "constraint", "gres", "nodes")} | {
    "partition": "slurm_partition",
    "account": "slurm_account",
    "ntasks": "tasks",
    "ntasks-per-node": "tasks_per_node",
    "cpus-per-task": "cpus_per_task",
    "mem": "mem_mb",
    "time": "runtime",
}
PROCESSES = ("nodes", "ntasks", "ntasks-per-node", "time")  # a test job is one process, of minutes
SIZE = ("cpus-per-task", "mem")
UNREADABLE: tuple[type[Exception], ...] = (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError)
UNREADABLE += (RecursionError, humanfriendly.InvalidSize, humanfriendly.InvalidTimespan)


@dataclass(frozen=True)
class Request:
    """The resources that the profile requests for a rule, or by default."""

    rule: str
    resources: Mapping[str, Any]

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
        if values["mem"] is None and (size := self.text("mem")):
            values["mem"] = str(math.ceil(humanfriendly.parse_size(size) / 10**6))
        if (limit := values["time"]) and not limit.isdecimal():
            values["time"] = str(math.ceil(humanfriendly.parse_timespan(limit) / 60))
        model, gpus = self.text("gpu_model"), self.text("gpu")
        if (model or gpus not in (None, "0")) and not values["gres"]:
            values["gpus"] = ":".join(filter(None, [model, gpus or "1"]))
        return {option: value for option, value in values.items() if value}

    @property
    def gpus(self) -> int:
        """GPUs per node: of `gres: gpu:a100:2`, or the node's share of `gpu: 4`, which counts all GPUs of the job."""
        items = re.sub(r"\([^)]*\)", "", self.options.get("gres", "")).split(",")
        kinds = [item.split(":") for item in items if item.split(":")[0] == "gpu"]
        if kinds:
            return sum(int(kind[-1]) if kind[-1].isdecimal() else 1 for kind in kinds)
        per_job = self.options.get("gpus", "0").rpartition(":")[2]
        return math.ceil(int(per_job) / int(self.options.get("nodes", 1)))

    def words(self, leave_out: Collection[str] = ()) -> tuple[str, ...]:
        """The options of the command line; without those of several processes, GPUs are those of one node."""
        options = {option: value for option, value in self.options.items() if option not in leave_out}
        if "nodes" in leave_out and "gpus" in options:
            options["gpus"] = ":".join([*options["gpus"].split(":")[:-1], str(self.gpus)])
        extra = shlex.split(self.text("slurm_extra") or "")
        return (*(f"--{option}={value}" for option, value in options.items()), *extra)


def check_cluster(config: Path, profile: Path, results: Path) -> None:
    """Check the cluster against ``profile`` and the study in ``config``; run this on a login node.

    ``results`` is the folder of results, where a test job writes and removes a file.
    """
    findings = Findings()
    if absent := [name for name in COMMANDS if shutil.which(name) is None]:
        change = "Run this on a login node of the cluster; on some, `module load slurm` is needed first."
        findings.add("slurm", f"not found: {', '.join(absent)}", "wrong", change)
        findings.end()
    limits = _partitions(findings)
    requests, job_age = read_profile(findings, profile)
    study = read_study(findings, config)
    if limits:
        _check_job_records(findings, job_age)
        accepted = [request for request in requests if _accepted(findings, request, limits, profile)]
        with_vllm, folders = rules_with_vllm(study), shared_folders(study) if study else []
        # One test job per combination of placement options, with vLLM if a rule with these options starts it.
        places: dict[tuple[str, ...], Request] = {}
        for request in accepted:
            place = request.words((*PROCESSES, *SIZE))
            if place not in places or request.rule in with_vllm:
                places[place] = request
        for request in places.values():
            _try_job(findings, request, results, folders, with_engine=request.rule in with_vllm)
    check_disk(findings, results)
    if study is not None:
        check_needs(findings, study)
    findings.end()


def _partitions(findings: Findings) -> dict[str, str]:
    """Partition that is up → its time limit; the default one is also under the name ""."""
    try:
        # As inside jobs, where Snakemake removes this variable.
        lines = output_of("sinfo", "--noheader", "--format=%P|%a|%l", without="SLURM_CONF").splitlines()
    except UserError as error:
        change = "Is this a login node, and the controller up (`scontrol ping`)?"
        if "SLURM_CONF" in os.environ:
            change += " Jobs do not have SLURM_CONF: the file has to be in SLURM's default location."
        findings.add("slurm", f"sinfo: {error}", "wrong", change)
        return {}
    limits: dict[str, str] = {}
    for name, up, limit in (line.split("|", 2) for line in lines):
        if up == "up":
            limits |= {name.rstrip("*"): limit} | ({"": limit} if name.endswith("*") else {})
    if not limits:
        findings.add("slurm", "sinfo lists no partition that is up", "wrong", "Ask the cluster's administrators.")
        return {}
    findings.add("slurm", f"sinfo answers, partitions: {', '.join(name for name in limits if name)}")
    return limits


def read_profile(findings: Findings, profile: Path) -> tuple[list[Request], float]:
    """Resource requests of the profile, and the seconds for which SLURM must keep records of finished jobs.

    There is one request per rule with resources of its own, and one for `default-resources` if a rule has none. The
    seconds are three times the executor's wait before its first status check.
    """
    try:
        content = yaml.safe_load(profile.read_text(encoding="utf-8"))
        shared = dict(content.get("default-resources") or {})
        rules = {rule: dict(resources or {}) for rule, resources in (content.get("set-resources") or {}).items()}
        requests = [Request(rule, shared | resources) for rule, resources in rules.items()]
        if not set(SUBMITTED) <= set(rules):
            requests.insert(0, Request("default-resources", shared))
        job_age = 3.0 * float(content.get("slurm-init-seconds-before-status-checks", FIRST_STATUS_CHECK))
        for request in requests:  # raises if a value cannot be parsed
            _ = request.options, request.gpus
    except FileNotFoundError:
        findings.add("profile", f"{profile}: no such file", "wrong", "Run this from the repository's root.")
        return [], 0.0
    except UNREADABLE as error:
        reason = str(error).replace("\n", " ")
        findings.add("profile", f"{profile}: {reason}", "wrong", "It is a mapping; `git diff` shows what was changed.")
        return [], 0.0
    findings.add("profile", f"{profile}: {', '.join(rules) or 'no rule'} with resources of their own")
    for rule in set(rules) - set(SUBMITTED):
        change = f"The rules that are jobs: {', '.join(SUBMITTED)}.{did_you_mean(rule, SUBMITTED)}"
        findings.add("profile", f"{profile}: set-resources: {rule!r} is no rule that runs as a job", "wrong", change)
    return requests, job_age


def _accepted(findings: Findings, request: Request, limits: Mapping[str, str], profile: Path) -> bool:
    """Whether jobs with these resources can be tested; finds those that SLURM would refuse or never start."""
    where = f"{profile}, {request.rule}"
    if request.expressions:
        listed = ", ".join(request.expressions)
        findings.add("profile", f"{where}: {listed}: evaluated for each job, not checked", "note")
    if "slurm_partition" in request.expressions:
        return False
    try:
        output_of("sbatch", "--test-only", *request.words(), "--wrap=true")
    except UserError as error:
        change = "`sinfo -o '%P %l %c %m %G'` lists limit, CPUs, memory and GPUs of each partition."
        options = shlex.join(request.words()) or "a job without options"
        findings.add("profile", f"{where}: SLURM refuses {options}: {error}", "wrong", change)
        return False
    # SLURM accepts the following jobs, which then stay pending for ever.
    minutes = int(request.options.get("time", 0))
    for name in request.options.get("partition", "").split(","):
        if name not in limits:
            findings.add("profile", f"{where}: partition {name!r} is not up", "wrong", "See `sinfo -s`.")
            return False
        most = (parse_time_left(limits[name]) or math.inf) / 60
        if minutes > most:
            problem = f"{where}: asks for {minutes} minutes, partition {name or '(the default)'} gives {most:.0f}"
            findings.add("profile", problem, "wrong", f"Set runtime to at most {most:.0f}.")
    return True


def _check_job_records(findings: Findings, job_age: float) -> None:
    """Whether SLURM keeps records of finished jobs for ``job_age`` seconds, until Snakemake has asked for their status;
    and whether preempted jobs are cancelled instead of requeued.
    """
    try:
        answer = output_of("scontrol", "show", "config")
    except UserError as error:
        change = "If scontrol takes over 10 s, Snakemake asks sacct instead, which fails without accounting."
        findings.add("slurm", f"scontrol show config: {error}", "note", change)
        return
    settings = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in answer.splitlines())}
    age = int(re.sub(r"\D", "", settings.get("MinJobAge", "")) or 300)
    if age < job_age:
        problem = f"finished jobs are forgotten after {age} s (MinJobAge), before Snakemake asks for their status"
        if settings.get("AccountingStorageType", "").endswith("none"):
            change = f"There is no accounting to ask instead: have MinJobAge raised to {job_age:.0f}."
            findings.add("slurm", problem, "wrong", change)
        else:
            findings.add("slurm", f"{problem}; sacct is asked instead", "note")
    if "CANCEL" in settings.get("PreemptMode", "").upper():
        change = "Snakemake waits for ever for such a job: press Ctrl-C and run the same command again."
        findings.add("slurm", "preempted jobs are cancelled here (PreemptMode)", "note", change)


def rules_with_vllm(study: Study | None) -> set[str]:
    """Names of the rules whose jobs start vLLM."""
    if study is None or importlib.util.find_spec("vllm") is None:
        return set()
    training, evaluation = (s.engine in ("auto", "vllm") for s in (study.training, study.evaluation))
    return ({"train", "estimators", "rounds"} if training else set()) | ({"evaluate"} if evaluation else set())


def shared_folders(study: Study) -> list[Path]:
    """Existing folders that jobs read besides the results: problem sets, and the initial model or the hub's cache."""
    start = study.model.start
    folders = [data_root(study.data.root)] if problem_sets(study) else []
    if start != "tiny":
        folders.append(Path(start) if Path(start).is_dir() else Path(HF_HUB_CACHE))
    return [path for path in folders if path.exists()]


def _try_job(findings: Findings, request: Request, results: Path, folders: Sequence[Path], with_engine: bool) -> None:
    """Run a test job: does it start, see ``folders`` and this environment, get its GPUs, and does vLLM start there?"""
    place = request.words((*PROCESSES, *SIZE))
    where = " ".join(place) or "default partition"
    folder = results.resolve() / f".doctor-{uuid.uuid4().hex[:8]}"
    # vLLM needs the memory and CPUs that the rule requests.
    options = request.words(PROCESSES) if with_engine else place
    options = ("--job-name=doctor", "--ntasks=1", "--time=10", f"--immediate={START_TIMEOUT}", *options)
    probe = [sys.executable, "-m", "policygrain.plan.probe", str(folder), str(request.gpus), str(int(with_engine))]
    probe += [str(path.resolve()) for path in folders]
    timeout = START_TIMEOUT + JOB_TIMEOUT + (ENGINE_TIMEOUT if with_engine else 0)
    try:
        folder.mkdir(parents=True)
        (folder / "here").write_text(folder.name)
        # Without SLURM_JOB… variables: inside an allocation srun would start a step of it instead of a job.
        _, mark, answer = output_of("srun", *options, *probe, timeout=timeout, without="SLURM_JOB").partition(MARK)
        if not mark:
            findings.add("job", f"{where}: srun printed something else", "wrong", "Try `srun hostname` by hand.")
            return
        node, problem, change = json.JSONDecoder().raw_decode(answer)[0]
        if not problem and not (folder / "there").exists():
            problem, change = (
                f"wrote into another folder than {folder.parent}",
                "Work in a folder that all nodes share.",
            )
        sees = "sees folder and environment" + ", GPU" * bool(request.gpus) + ", vLLM starts" * with_engine
        findings.add("job", f"{where}: a job on {node} {problem or sees}", "wrong" if problem else "ok", change)
    except OSError as error:
        findings.add("job", f"{folder}: {error.strerror}", "wrong", "Run this where results may be written.")
    except UserError as error:
        if re.search(r"immediate|Resources temporarily unavailable", str(error)):
            change = "The cluster may be full; try again later. `srun --test-only` shows when such a job would start."
            findings.add("job", f"{where}: not tried, no job started within {START_TIMEOUT} s", "note", change)
        elif "not answer" in str(error):
            change = "Check how long Python takes to start there: on a slow file system importing torch takes minutes."
            findings.add("job", f"{where}: not finished, {error}", "note", change)
        else:
            by_hand = " ".join(["srun", *place, sys.executable, "-c", "'import policygrain'"])
            change = f"Try `{by_hand}`. Check account and partition, and that nodes see this folder and its .venv."
            findings.add("job", f"{where}: {error}", "wrong", change)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
