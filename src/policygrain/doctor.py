"""`policygrain doctor`: whether this machine, or a cluster, has what a study needs, before the first job says so.

Each check is a function that yields findings; a finding that is not in order says what to change.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from .errors import UserError, did_you_mean
from .train.stopping import parse_time_left

if TYPE_CHECKING:
    from .study import Study

MEMORY_GB = 2  # what Snakemake, one trainer of a tiny model and its verifier take together
START_SECONDS = 60  # for a job of one line; a cluster that is full does not start one
COMMANDS = ("sinfo", "sbatch", "srun", "squeue", "scancel")


@dataclass(frozen=True)
class Finding:
    """What was looked at and found; ``change`` says what to do where it is not in order."""

    what: str
    found: str
    state: Literal["ok", "note", "wrong"] = "ok"
    change: str = ""

    def __str__(self) -> str:
        arrow = f"\n{'':18}→ {self.change}" if self.change else ""
        return f"{self.state:5}  {self.what:9}  {self.found}{arrow}"


def examine(findings: Iterable[Finding]) -> None:
    """Print findings as they come. UserError at the end when something is wrong."""
    wrong = 0
    for finding in findings:
        print(finding, flush=True)
        wrong += finding.state == "wrong"
    if wrong:
        raise UserError(f"doctor: {wrong} {'thing is' if wrong == 1 else 'things are'} wrong, see above.")


def this_machine(config: Path, results: Path) -> Iterator[Finding]:
    """Cores, memory, disk, libraries, and what the study in ``config`` needs besides."""
    yield Finding("cores", str(len(os.sched_getaffinity(0))))
    yield _memory()
    yield _disk(results)
    yield _torch()
    study = yield from _study(config)
    yield _vllm(study)
    if study is not None:
        yield from _data(study)
        yield from _model(study)
        yield from _mlflow(study)


def cluster(config: Path, profile: Path, results: Path) -> Iterator[Finding]:
    """What ``profile`` asks of the cluster, and what the study needs on the login node."""
    absent = [name for name in COMMANDS if shutil.which(name) is None]
    if absent:
        change = "Run this on a login node of the cluster; some want `module load slurm` first."
        yield Finding("slurm", f"not found: {', '.join(absent)}", "wrong", change)
        return
    partitions = yield from _partitions()
    wishes = yield from _profile(profile)
    for wish in wishes if partitions else ():
        yield from _wish(wish, partitions, profile)
    if partitions:
        # One job per kind of place, on those that exist.
        places = {w.place: w for w in reversed(wishes) if (w.partition or _default(partitions)) in partitions}
        for wish in reversed(places.values()):
            yield _job(wish, results)
    yield _disk(results)
    study = yield from _study(config)
    yield _vllm(study)
    if study is not None:
        yield from _data(study)
        yield from _model(study)
        yield from _mlflow(study)


# ---- this machine ---------------------------------------------------------------------------------------------------


def _memory() -> Finding:
    try:
        match = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    except OSError:
        match = None
    if match is None:
        return Finding("memory", "this system does not say", "note")
    available = int(match[1]) / 2**20
    if available < MEMORY_GB:
        return Finding(
            "memory", f"{available:.1f} GB free", "wrong", f"Free {MEMORY_GB} GB, or run with fewer --cores."
        )
    return Finding("memory", f"{available:.1f} GB free")


def _disk(results: Path) -> Finding:
    from .stages import check_free_space

    try:
        check_free_space(results)
    except UserError as error:
        return Finding("disk", str(error), "wrong", "Free some space there, or run in another folder (--directory).")
    return Finding("disk", f"{shutil.disk_usage(results).free / 2**30:.0f} GB free in {results.resolve()}")


def _torch() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("torch", f"cannot be imported: {error}", "wrong", "Run `make setup`.")
    if torch.cuda.is_available():
        return Finding(
            "torch", f"{torch.__version__}, {torch.cuda.device_count()} GPU ({torch.cuda.get_device_name()})"
        )
    if shutil.which("nvidia-smi"):
        change = "Run `make setup FLAVOUR=gpu` for the CUDA build; is CUDA_VISIBLE_DEVICES set, or the driver too old?"
        return Finding("torch", f"{torch.__version__} sees no GPU, but there is a driver", "note", change)
    return Finding("torch", f"{torch.__version__}, no GPU")


def _study(config: Path) -> Generator[Finding, None, Study | None]:
    from .study import load_study
    from .study.arms import plan

    try:
        study = load_study(config)
    except UserError as error:
        yield Finding("study", str(error), "wrong", "Mend the study file; `policygrain check` reads it again.")
        return None
    yield Finding("study", f"{config}: {len(plan(study).runs)} runs, {len(plan(study).evaluated)} of them evaluated")
    return study


def _vllm(study: Study | None) -> Finding:
    wanted = study is not None and "vllm" in (study.evaluation.engine, study.training.engine)
    state: Literal["note", "wrong"] = "wrong" if wanted else "note"
    if importlib.util.find_spec("vllm") is None:
        without = "" if wanted else " Without it, evaluation with `engine: auto` takes transformers, which is slower."
        return Finding("vllm", "not installed", state, f"Run `make setup`.{without}")
    # In a process of its own: importing it changes the process, and a broken installation may end it.
    command = [sys.executable, "-c", "import vllm; print(vllm.__version__)"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
    except subprocess.TimeoutExpired:
        return Finding("vllm", "did not import within 5 minutes", state, "Is the environment on a slow file system?")
    if done.returncode != 0:
        # `auto` takes vLLM where it is installed, so a broken one is worse than none.
        return Finding("vllm", f"cannot be imported: {last}", "wrong", "Run `make setup`, or remove it.")
    return Finding("vllm", done.stdout.split()[-1])


def _data(study: Study) -> Iterator[Finding]:
    from .tasks.check import data_root
    from .tasks.families import FAMILIES

    sources = [*study.data.train, *(b.source for b in study.evaluation.benchmarks)]
    sets = sorted({source for source in sources if source not in FAMILIES})
    # `load_study` has opened them: a set that is not there is a finding of the study, with the way to get it.
    root = data_root(study.data.root).resolve()
    yield Finding("data", f"{', '.join(sets)} in {root}" if sets else "synthetic, nothing to fetch")


def _model(study: Study) -> Iterator[Finding]:
    start = study.model.start
    if start == "tiny" or Path(start).is_dir():
        yield Finding("model", "built by the pipeline" if start == "tiny" else f"folder {start}")
        return
    from huggingface_hub import try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(start, "config.json", revision=study.model.revision)
    except ValueError as error:
        yield Finding("model", f"{start}: {error}", "wrong", "model.start is a folder or a Hugging Face name.")
        return
    if isinstance(cached, str):
        yield Finding("model", f"{start}, in the cache")
        return
    revision = f" --revision {study.model.revision}" if study.model.revision else ""
    change = f"Where compute nodes have no network, fetch it here first: `hf download {start}{revision}`."
    yield Finding("model", f"{start} is not in the cache of this machine", "note", change)


def _mlflow(study: Study) -> Iterator[Finding]:
    uri = study.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        yield Finding("mlflow", "no server named; a local store beside the results")
        return
    if not uri.startswith(("http://", "https://")):
        yield Finding("mlflow", uri)
        return
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=10):
            yield Finding("mlflow", f"{uri} answers")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        change = "Start the server, or mend tracking.uri or MLFLOW_TRACKING_URI. Only the last rule needs it."
        yield Finding("mlflow", f"{uri} does not answer: {reason}", "wrong", change)


# ---- a cluster ------------------------------------------------------------------------------------------------------


@dataclass
class Partition:
    """What sinfo says of one partition: the most that a node of it has."""

    default: bool = False
    minutes: float | None = None  # None: no limit
    memory_mb: int = 0
    cpus: int = 0
    gpus: int = 0
    gpu_models: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Wish:
    """What the profile asks for a rule, or by default."""

    rule: str
    resources: Mapping[str, Any]

    @property
    def partition(self) -> str | None:
        """The partition named, if one is."""
        return self._text("slurm_partition")

    @property
    def gpus(self) -> int:
        """GPUs of a job, from `gpu: 2`, `gpu_model` or `gres: gpu:a100:2`."""
        gres = re.search(r"\bgpu(?::[^:,]+)??(?::(\d+))?(?:,|$)", self._text("gres") or "")
        if gres:
            return int(gres[1] or 1)
        return int(self.resources.get("gpu") or bool(self.resources.get("gpu_model")))

    @property
    def place(self) -> tuple[str, ...]:
        """The options of srun that decide where a job goes."""
        options = {"partition": self.partition, "account": self._text("slurm_account"), "qos": self._text("qos")}
        options |= {key: self._text(key) for key in ("constraint", "gres")}
        if self.gpus and not options["gres"]:
            model = self._text("gpu_model")
            options["gpus"] = f"{model}:{self.gpus}" if model else str(self.gpus)
        return tuple(f"--{option}={value}" for option, value in options.items() if value)

    def _text(self, key: str) -> str | None:
        value = self.resources.get(key)
        return None if value in (None, "") else str(value)


def _ask(*command: str, timeout: float = 60) -> str:
    """What a command prints; UserError with its last word where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{command[0]} did not answer within {timeout:.0f} s") from error
    if done.returncode != 0:
        raise UserError((done.stderr.strip().splitlines() or [f"{command[0]} failed with {done.returncode}"])[-1])
    return done.stdout


def _partitions() -> Generator[Finding, None, dict[str, Partition]]:
    """All partitions by name."""
    try:
        answer = _ask("sinfo", "--noheader", "--format=%P|%a|%l|%m|%c|%G")
    except UserError as error:
        yield Finding(
            "slurm", f"sinfo: {error}", "wrong", "Is this a login node, and the controller up (`scontrol ping`)?"
        )
        return {}
    found = parse_partitions(answer)
    if not found:
        yield Finding("slurm", "sinfo lists no partition that is up", "wrong", "Ask the cluster's administrators.")
        return {}
    yield Finding("slurm", f"sinfo answers, partitions: {', '.join(found)}")
    return found


def parse_partitions(answer: str) -> dict[str, Partition]:
    """From sinfo's `%P|%a|%l|%m|%c|%G`, a line per kind of node."""
    found: dict[str, Partition] = {}
    for line in answer.splitlines():
        name, up, limit, memory, cpus, gres = line.split("|", 5)
        if up != "up":
            continue
        each = found.setdefault(name.rstrip("*"), Partition())
        each.default |= name.endswith("*")
        seconds = parse_time_left(limit)
        each.minutes = None if seconds is None else seconds / 60
        each.memory_mb = max(each.memory_mb, int(re.sub(r"\D", "", memory) or 0))
        each.cpus = max(each.cpus, int(re.sub(r"\D", "", cpus) or 0))
        kinds = re.findall(r"\bgpu(?::([A-Za-z][^:,(]*))?:(\d+)", gres)
        each.gpus = max(each.gpus, sum(int(count) for _, count in kinds))
        each.gpu_models |= {model for model, _ in kinds if model}
    return found


def _default(partitions: Mapping[str, Partition]) -> str | None:
    return next((name for name, each in partitions.items() if each.default), None)


def _profile(profile: Path) -> Generator[Finding, None, list[Wish]]:
    """The wishes of a profile: the default one, then rule by rule."""
    try:
        content = yaml.safe_load(profile.read_text(encoding="utf-8"))
        shared = dict(content.get("default-resources") or {})
        rules = {rule: dict(own or {}) for rule, own in (content.get("set-resources") or {}).items()}
    except FileNotFoundError:
        yield Finding("profile", f"{profile}: no such file", "wrong", "Run this from the repository's root.")
        return []
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        reason = str(error).replace("\n", " ")
        yield Finding("profile", f"{profile}: {reason}", "wrong", "It is a mapping; `git diff` shows what was changed.")
        return []
    yield Finding("profile", f"{profile}: {', '.join(rules) or 'no rule'} with resources of their own")
    return [Wish("default-resources", shared), *(Wish(rule, shared | own) for rule, own in rules.items())]


def _wish(wish: Wish, partitions: Mapping[str, Partition], profile: Path) -> Iterator[Finding]:
    """Whether a partition can give what is asked of it. A job that asks for more waits for ever or is refused."""
    name = wish.partition or _default(partitions)
    where = f"{profile}, {wish.rule}"
    if name is None:
        change = f"Set slurm_partition under default-resources to one of: {', '.join(partitions)}."
        yield Finding("partition", f"{where}: none is named and the cluster has no default one", "wrong", change)
        return
    if name not in partitions:
        change = f"Set slurm_partition to what `sinfo -s` lists.{did_you_mean(name, partitions)}"
        yield Finding("partition", f"{where}: there is no partition {name!r}", "wrong", change)
        return
    there = partitions[name]
    if wish.gpus > there.gpus:
        with_gpus = [n for n, p in partitions.items() if p.gpus >= wish.gpus]
        better = f"Set slurm_partition to one that has them: {', '.join(with_gpus)}." if with_gpus else "Ask for fewer."
        found = f"{where}: {wish.gpus} GPUs asked, nodes of {name!r} have {there.gpus}"
        yield Finding("gpu", found, "wrong", f"{better} Without GPUs, remove the `gpu` lines.")
    model = wish.resources.get("gpu_model")
    if wish.gpus and model and model not in there.gpu_models:
        change = (
            f"Set gpu_model to one of: {', '.join(sorted(there.gpu_models)) or 'none is told apart here; remove it'}."
        )
        yield Finding("gpu", f"{where}: {name!r} has no GPU of model {model!r}", "wrong", change)
    limits = (("mem_mb", there.memory_mb, "MB of memory"), ("runtime", there.minutes, "minutes"))
    for key, most, unit in limits:
        asked = wish.resources.get(key)
        if isinstance(asked, int) and most and asked > most:
            found = f"{where}: {asked} {unit} asked, {name!r} gives {most:.0f}"
            yield Finding("partition", found, "wrong", f"Set {key} to at most {most:.0f}.")


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


def _job(wish: Wish, results: Path) -> Finding:
    """A job of one line: does it start, does it see this folder and this environment, has it its GPUs?"""
    place = " ".join(wish.place) or "the default place"
    folder = results.resolve() / f".doctor-{uuid.uuid4().hex[:8]}"
    secret = uuid.uuid4().hex
    options = ["--job-name=doctor", "--ntasks=1", "--time=5", f"--immediate={START_SECONDS}", *wish.place]
    try:
        folder.mkdir(parents=True)
        (folder / "here").write_text(secret)
        probe = [sys.executable, "-c", PROBE, str(folder), str(wish.gpus)]
        answer = _ask("srun", *options, *probe, timeout=START_SECONDS + 120)
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
