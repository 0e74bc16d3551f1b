"""`policygrain doctor`: whether this machine has what a study needs. `cluster` has the checks of a cluster."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Literal

from ..errors import UserError
from ..files import check_free_space
from ..hub import cached_config, download_command
from ..study import Study, load_study
from ..study.runs import run_matrix
from ..tasks.families import FAMILIES
from ..tasks.set_files import data_root
from ..tasks.sources import check_sources
from ..text import redacted

MEMORY_GB = 2  # of Snakemake, one trainer of a tiny model and its grader together


class Findings:
    """Prints each finding as soon as it is known."""

    wrong = 0

    def add(self, what: str, found: str, state: Literal["ok", "note", "wrong"] = "ok", change: str = "") -> None:
        """Print one: ``what`` was checked, what was ``found``, and what to ``change`` if it is a problem."""
        print(f"{state:5}  {what:9}  {found}" + (f"\n{'':18}→ {change}" if change else ""), flush=True)
        self.wrong += state == "wrong"

    def end(self) -> None:
        """UserError if something is `wrong`."""
        if self.wrong:
            raise UserError(f"doctor: {self.wrong} {'thing is' if self.wrong == 1 else 'things are'} wrong, see above.")


def check_machine(config: Path, results: Path) -> None:
    """Check this machine, and what the study in ``config`` needs; ``results`` is the folder of results."""
    findings = Findings()
    _check_memory(findings)
    check_disk(findings, results)
    _check_torch(findings)
    study = read_study(findings, config)
    _check_vllm(findings, study)
    if study is not None:
        check_needs(findings, study)
    findings.end()


def read_study(findings: Findings, config: Path) -> Study | None:
    """The study in ``config``; None if it is invalid."""
    try:
        study = load_study(config)
    except UserError as error:
        findings.add("study", str(error), "wrong", "Correct the study file; `policygrain check` checks it again.")
        return None
    matrix = run_matrix(study)
    findings.add("study", f"{config}: {len(matrix.runs)} runs, {len(matrix.evaluated)} of them evaluated")
    return study


def check_disk(findings: Findings, results: Path) -> None:
    """Whether ``results`` is writable and its disk has free space."""
    try:
        check_free_space(results)
    except UserError as error:
        change = "Free some space there, or run in another folder (--directory)."
        findings.add("disk", str(error), "wrong", change)
        return
    findings.add("disk", f"{shutil.disk_usage(results).free / 2**30:.0f} GB free in {results.resolve()}")


def check_needs(findings: Findings, study: Study) -> None:
    """Check the study's problem sets, initial model and MLflow server."""
    try:
        check_sources(study)
        sets = ", ".join(problem_sets(study))
        root = data_root(study.data.root).resolve()
        findings.add("data", f"{sets} in {root}" if sets else "synthetic, nothing to fetch")
    except UserError as error:
        change = "`policygrain data list` shows registered sets, `policygrain data fetch` downloads them."
        findings.add("data", str(error), "wrong", change)
    start, revision = study.model.start, study.model.revision
    if start == "tiny" or Path(start).is_dir():
        findings.add("model", "built by the pipeline" if start == "tiny" else f"folder {start}")
    elif cached_config(start, revision):
        findings.add("model", f"{start}, in the cache")
    else:
        change = f"Where compute nodes have no network, fetch it here: `{download_command(start, revision)}`."
        findings.add("model", f"{start} is no folder, and not in the cache of this machine", "note", change)
    _check_mlflow(findings, study.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI"))


def problem_sets(study: Study) -> list[str]:
    """The study's sources of problems that are not synthetic."""
    return sorted({*study.data.train, *(b.source for b in study.evaluation.benchmarks)} - set(FAMILIES))


def _check_mlflow(findings: Findings, uri: str | None) -> None:
    if not uri or not uri.startswith(("http://", "https://")):
        findings.add("mlflow", redacted(uri) if uri else "no server named; a local store beside the results")
        return
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=10):
            findings.add("mlflow", f"{redacted(uri)} answers")
    except (OSError, ValueError) as error:
        change = "Start the server, or correct tracking.uri or MLFLOW_TRACKING_URI. Only the last rule needs it."
        reason = getattr(error, "reason", error)
        findings.add("mlflow", f"{redacted(uri)} does not answer: {reason}", "wrong", change)


def _check_memory(findings: Findings) -> None:
    cores = f"{len(os.sched_getaffinity(0))} cores"
    try:
        match = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    except OSError:
        match = None
    if match is None:
        findings.add("memory", f"{cores}; free memory is not known on this system", "note")
        return
    free = int(match[1]) / 2**20
    change = f"Free {MEMORY_GB} GB, or run with fewer --cores." if free < MEMORY_GB else ""
    findings.add("memory", f"{cores}, {free:.1f} GB free", "wrong" if change else "ok", change)


def _check_torch(findings: Findings) -> None:
    try:
        import torch
    except (ImportError, OSError) as error:
        findings.add("torch", f"cannot be imported: {error}", "wrong", "Run `make setup`.")
        return
    if torch.cuda.is_available():
        gpus = f"{torch.cuda.device_count()} GPU ({torch.cuda.get_device_name()})"
        findings.add("torch", f"{torch.__version__}, {gpus}")
    elif shutil.which("nvidia-smi"):
        change = "Run `make setup FLAVOUR=gpu` for the CUDA build; else check CUDA_VISIBLE_DEVICES and the driver."
        findings.add("torch", f"{torch.__version__} sees no GPU, but there is a driver", "note", change)
    else:
        findings.add("torch", f"{torch.__version__}, no GPU")


def _check_vllm(findings: Findings, study: Study | None) -> None:
    """Whether this machine can import vLLM, in a process of its own, which a broken installation may crash."""
    needed = study is not None and "vllm" in (study.evaluation.engine, study.training.engine)
    if importlib.util.find_spec("vllm") is None:
        without = "" if needed else " Without it, `engine: auto` takes transformers, which is slower."
        findings.add("vllm", "not installed", "wrong" if needed else "note", f"Run `make setup`.{without}")
        return
    command = [sys.executable, "-c", "import vllm; print(vllm.__version__)"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        change = "The environment may be on a slow file system."
        findings.add("vllm", "did not import within 5 minutes", "wrong" if needed else "note", change)
        return
    if done.returncode != 0:
        # `auto` chooses vLLM if it is installed, so a broken installation is worse than none.
        last = (done.stderr.strip().splitlines() or ["it ended without a message"])[-1]
        findings.add("vllm", f"cannot be imported: {last}", "wrong", "Run `make setup`, or remove it.")
    else:
        findings.add("vllm", done.stdout.split()[-1])
