"""Checks of what a study needs besides the machine: its file, engine, data, start model and MLflow server."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import UserError
from .finding import Finding

if TYPE_CHECKING:
    from ..study import Study


def check_requirements(study: Study) -> Iterator[Finding]:
    """Check the study's problem sets, start model and MLflow server."""
    yield from _data(study)
    yield from _model(study)
    yield from _mlflow(study)


def read_study(config: Path) -> Generator[Finding, None, Study | None]:
    """The study in ``config``; None if it is invalid. Yields a finding."""
    from ..study import load_study
    from ..study.runs import run_matrix

    try:
        study = load_study(config)
    except UserError as error:
        yield Finding("study", str(error), "wrong", "Correct the study file; `policygrain check` checks it again.")
        return None
    yield Finding(
        "study", f"{config}: {len(run_matrix(study).runs)} runs, {len(run_matrix(study).evaluated)} of them evaluated"
    )
    return study


def rules_with_vllm(study: Study | None) -> set[str]:
    """Names of the rules whose jobs start vLLM."""
    if study is None or importlib.util.find_spec("vllm") is None:
        return set()
    training, evaluation = (s.engine in ("auto", "vllm") for s in (study.training, study.evaluation))
    sampling = {"evaluate"} if study.evaluation.parts == 1 else {"evaluate_part"}
    return ({"train", "estimators", "rounds"} if training else set()) | (sampling if evaluation else set())


def check_vllm(study: Study | None) -> Finding:
    """Whether this machine can import vLLM."""
    wanted = study is not None and "vllm" in (study.evaluation.engine, study.training.engine)
    state: Literal["note", "wrong"] = "wrong" if wanted else "note"
    if importlib.util.find_spec("vllm") is None:
        without = "" if wanted else " Without it, evaluation with `engine: auto` takes transformers, which is slower."
        return Finding("vllm", "not installed", state, f"Run `make setup`.{without}")
    # In a process of its own, which a broken installation may crash.
    command = [sys.executable, "-c", "import vllm; print(vllm.__version__)"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        last = (done.stderr.strip().splitlines() or ["it ended without a message"])[-1]
    except subprocess.TimeoutExpired:
        return Finding(
            "vllm", "did not import within 5 minutes", state, "The environment may be on a slow file system."
        )
    if done.returncode != 0:
        # `auto` chooses vLLM if it is installed, so a broken installation is worse than none.
        return Finding("vllm", f"cannot be imported: {last}", "wrong", "Run `make setup`, or remove it.")
    return Finding("vllm", done.stdout.split()[-1])


def shared_folders(study: Study) -> list[Path]:
    """Existing folders that jobs read besides the results: problem sets, and the start model or the hub's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    from ..tasks.check import data_root

    start = study.model.start
    found = [data_root(study.data.root)] if _sets(study) else []
    if start != "tiny":
        found.append(Path(start) if Path(start).is_dir() else Path(HF_HUB_CACHE))
    return [path for path in found if path.exists()]


def _sets(study: Study) -> list[str]:
    """The study's problem sources that are not synthetic."""
    from ..tasks.families import FAMILIES

    return sorted({*study.data.train, *(b.source for b in study.evaluation.benchmarks)} - set(FAMILIES))


def _data(study: Study) -> Iterator[Finding]:
    from ..tasks.check import data_root
    from ..tasks.sources import check_sources

    sets = _sets(study)
    try:
        check_sources(study)
    except UserError as error:
        change = "`policygrain data list` shows registered sets, `policygrain data fetch` downloads them."
        yield Finding("data", str(error), "wrong", change)
        return
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
    from ..text import redacted

    uri = study.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        yield Finding("mlflow", "no server named; a local store beside the results")
        return
    if not uri.startswith(("http://", "https://")):
        yield Finding("mlflow", redacted(uri))
        return
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=10):
            yield Finding("mlflow", f"{redacted(uri)} answers")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        change = "Start the server, or correct tracking.uri or MLFLOW_TRACKING_URI. Only the last rule needs it."
        yield Finding("mlflow", f"{redacted(uri)} does not answer: {reason}", "wrong", change)
