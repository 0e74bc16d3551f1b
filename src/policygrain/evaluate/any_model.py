"""Evaluation of models without a study file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import ValidationError

from .. import digests
from ..analysis import accuracy
from ..data.problem import read_problems, write_problems
from ..data.sets import published_sampling
from ..data.sources import benchmark_problems, check_golds
from ..errors import UserError, explained
from ..model.vllm_engine import resolve_engine
from ..paths import StudyFolder
from ..records import BenchmarkRecord, read_record, write_record
from ..results import model_evaluation
from .evaluation import Evaluation

ANOTHER = "Choose another folder with --out, or remove this one."
PROMPT = "{problem}\nPlease reason step by step, and put your final answer within \\boxed{}.\n"


def asked(sources: Sequence[str], **options: Any) -> Evaluation:
    """The evaluation that the options of `policygrain evaluate-model` describe; those that are None are not set.

    Sampling parameters that are not set are those with which a set is published, else greedy.
    """
    given = {key: value for key, value in options.items() if value is not None}

    def taken(*keys: str) -> dict[str, Any]:
        return {key: given.pop(key) for key in keys if key in given}

    sampling, shared = taken("temperature", "top_p", "max_tokens"), taken("size", "extraction")
    if "samples" in given or sampling.get("temperature") == 0:
        sampling["n"] = given.pop("samples", 1)
    benchmarks = [
        {"name": slug(Path(source).stem), "source": source, "sampling": published_sampling(source) | sampling, **shared}
        for source in sources
    ]
    own = given.pop("prompt", "")
    prompt = {"template": own or PROMPT, **({"program": own} if own else {}), **taken("chat", "chat_template_kwargs")}
    given["engine"] = resolve_engine(given["engine"])
    try:
        return Evaluation.model_validate(given | {"benchmarks": benchmarks, "prompt": prompt})
    except ValidationError as error:
        raise UserError(explained(error)) from error


def prepare(folder: StudyFolder, evaluation: Evaluation, root: Path | None) -> None:
    """Write an evaluation and its problems into ``folder``. UserError if it has results of another protocol."""
    problems = {folder.data.benchmark(b.name): benchmark_problems(b, root) for b in evaluation.benchmarks}
    if folder.protocol.exists() and any(folder.path.glob("runs/*/seed0/evaluation/*")):
        there, asked = dict(read_record(Evaluation, folder.protocol, ANOTHER)), dict(evaluation)
        changed = [key for key in asked if there[key] != asked[key]]
        if changed := changed or [path.name for path in problems if read_problems(path) != problems[path]]:
            raise UserError(f"{folder.path}: has results of another protocol (other {', '.join(changed)}). {ANOTHER}")
    write_record(folder.protocol, evaluation)
    for path, listed in problems.items():
        write_problems(path, listed)
    check_golds([*problems], evaluation.grader)


def named(models: Sequence[str]) -> dict[str, str]:
    """Name → folder or hub name, from arguments `MODEL` or `NAME=MODEL`. UserError if two models have one name."""
    by_name: dict[str, str] = {}
    for text in models:
        name, separator, model = text.partition("=")
        if not separator or "/" in name:  # a path may contain `=`
            name, model = "", text
        parts = [part for part in Path(model).parts if part not in ("/", "model")]
        name = slug(name or (parts or [model])[-1])
        if name in by_name:
            raise UserError(f"two models have the name {name!r}; give one another name: NAME={model}.")
        by_name[name] = model
    return by_name


def slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text).lstrip(".-") or "model"


def leaderboard(results: StudyFolder) -> tuple[list[str], list[list[str]]]:
    """The table of all models in ``results``, in %, as (header, rows): a row per benchmark, the best model first."""
    found = {name.rpartition("/")[0]: model_evaluation(folder) for name, folder in results.evaluations()}
    if len({digests.of_json(e.protocol | {"model": None, "prompt": None}) for e in found.values()}) > 1:
        raise UserError(f"{results.path}: its models were evaluated under different protocols, or on other problems.")
    rows: list[dict[str, str]] = []
    for name, evaluation in sorted(found.items(), key=lambda item: -fmean(r.accuracy for r in item[1].records)):
        records = evaluation.records
        if len(records) > 1:
            rows.append({"model": name, "benchmark": "average", "accuracy": _accuracy(*records)})
        for record in records:
            row = {"model": name, "benchmark": record.benchmark, "accuracy": _accuracy(record)}
            responses = sum(record.outcomes.values())
            shares = {
                "maj@n": record.majority,
                "unparsable": record.outcomes.get("unparsable", 0) / responses,
                "not graded": sum(record.outcomes.get(kind, 0) for kind in ("timeout", "error")) / responses,
                "truncated": record.truncated,
                **{f"pass@{k}": value for k, value in record.pass_at.items() if k > 1},
            }
            texts = {key: f"{100 * share:.1f}" for key, share in shares.items() if share is not None}
            rows.append(row | {"problems": str(record.problems), "n": str(record.n)} | texts)
    header = list(dict.fromkeys(key for row in rows for key in row))
    return header, [[row.get(key, "") for key in header] for row in rows]


def _accuracy(*records: BenchmarkRecord) -> str:
    estimate = accuracy([np.array([record.per_problem]) for record in records])
    return f"{100 * estimate.mean:.1f} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"
