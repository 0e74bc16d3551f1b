"""Evaluation of models without a study file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import ValidationError

from .. import digests
from ..analysis import accuracy
from ..data.golds import check_golds
from ..data.problem import write_problems
from ..data.sets import published_sampling
from ..data.sources import benchmark_problems
from ..errors import UserError
from ..paths import StudyFolder
from ..records import BenchmarkRecord, read_record, write_record
from ..results import model_evaluation
from ..text import flat, some
from .protocol import Evaluation

PROMPT = "{problem}\nPlease reason step by step, and put your final answer within \\boxed{}.\n"


def asked(
    sources: Sequence[str],
    *,
    samples: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    max_tokens: int = 4096,
    size: int | None = None,
    extraction: str = "boxed",
    prompt: str | None = None,
    chat: bool = False,
    chat_template_kwargs: str = "{}",
    stop: Sequence[str] | None = None,
    **settings: Any,
) -> Evaluation:
    """The evaluation that the options of `policygrain evaluate-model` describe; ``settings``: others of `Evaluation`.

    ``sources``: registered sets, synthetic families or .jsonl files. Sampling parameters that are None are those with
    which a set is published, else greedy. UserError names the option that is wrong.
    """
    given = {"n": samples, "temperature": temperature, "top_p": top_p}
    given = {key: value for key, value in given.items() if value is not None}
    one = {"n": 1} if temperature == 0 and samples is None else {}
    benchmarks = []
    for source in sources:
        sampling = {"n": 1, "temperature": 0.0, "max_tokens": max_tokens, **published_sampling(source), **one, **given}
        if sampling["n"] > 1 and not sampling["temperature"]:
            raise UserError("--samples: several greedy responses are the same; give --temperature, too.")
        benchmark = {"name": slug(Path(source).stem), "source": source, "size": size}
        benchmarks.append(benchmark | {"sampling": sampling, "extraction": extraction})
    try:
        template_arguments = json.loads(chat_template_kwargs)
    except ValueError as error:
        raise UserError(
            f"--chat-template-kwargs: {chat_template_kwargs!r} is not JSON, such as '{{\"enable_thinking\": false}}': "
            f"{error}."
        ) from error
    settings |= {"benchmarks": benchmarks, "stop": stop or ()}
    settings["prompt"] = {"template": prompt or PROMPT, "chat": chat, "chat_template_kwargs": template_arguments}
    try:
        return Evaluation.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{'.'.join(map(str, first['loc']))}: {first['msg']} (got {first['input']!r}).") from error


def prepare(folder: StudyFolder, evaluation: Evaluation, root: Path | None) -> None:
    """Write an evaluation and its problems into ``folder``; ``root``: the folder of problem sets.

    UserError if the folder has results of another protocol, or problems cannot be read or graded.
    """
    problems = {folder.data.benchmark(b.name): benchmark_problems(b, root) for b in evaluation.benchmarks}
    if folder.protocol.exists():
        there = read_record(Evaluation, folder.protocol, "Choose another folder with --out.")
        old, new = (flat(_by_name(e)) for e in (there, evaluation))
        if changed := [key for key in {**old, **new} if old.get(key) != new.get(key)]:
            raise UserError(
                f"{folder.path}: has results of another protocol ({some(changed)} differ{'s' * (len(changed) == 1)}). "
                "Choose another folder with --out, or remove this one."
            )
    write_record(folder.protocol, evaluation)
    for path, listed in problems.items():
        write_problems(path, listed)
    check_golds([*problems], evaluation.grader)


def _by_name(evaluation: Evaluation) -> Mapping[str, Any]:
    data = evaluation.model_dump(mode="json")
    return data | {"benchmarks": {benchmark["name"]: benchmark for benchmark in data["benchmarks"]}}


def named(models: Sequence[str]) -> dict[str, str]:
    """Name → folder or hub name, from arguments `MODEL` or `NAME=MODEL`. UserError if two models have one name."""
    by_name: dict[str, str] = {}
    for text in models:
        name, separator, model = text.partition("=")
        if not separator or "/" in name:
            model = text
            parts = [part for part in Path(text).parts if part not in ("/", "model")]
            name = parts[-1] if parts else text
        name = slug(name)
        if name in by_name:
            raise UserError(f"two models have the name {name!r}; give one another name: NAME={model}.")
        by_name[name] = model
    return by_name


def fetched(model: str, revision: str | None = None) -> Path:
    """The folder ``model``, or a local copy of the hub's ``model`` at ``revision``. UserError if there is neither."""
    if (folder := Path(model)).is_dir():
        if not (folder / "config.json").is_file():
            raise UserError(f"{folder}: is not a model: it has no config.json.")
        return folder
    if folder.suffix == ".gguf":
        raise UserError(
            f"{folder}: a GGUF file is not a model folder. Read it with transformers' from_pretrained(gguf_file=...), "
            "remove the quantization, and write a folder with save_pretrained."
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, ignore_patterns=["*.gguf", "*.onnx", "*.msgpack"]))
    # The client's errors have no narrower common base classes; all of them mean that there is no such model.
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(f"{model!r} is neither a folder nor a model that the hub provides: {reason}") from error


def slug(text: str) -> str:
    """``text`` as a valid name of a folder."""
    return re.sub(r"^[^A-Za-z0-9_]+", "", re.sub(r"[^A-Za-z0-9_.-]", "_", text)) or "model"


# ---- the table ------------------------------------------------------------------------------------------------------

FAILURES = ("timeout", "error")  # of the grader; counted as incorrect


def leaderboard(results: StudyFolder) -> tuple[list[str], list[list[str]]]:
    """The table of all models in ``results`` as (header, rows): a row per benchmark, the best model first.

    In %: accuracy with its 95% interval over problems, maj@n, pass@k, and the shares of responses without an answer
    (`unparsable`), that the grader failed on (`not graded`) or that ended at the length limit (`truncated`).
    """
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
            failed = {"unparsable": record.outcomes.get("unparsable", 0)}
            failed["not graded"] = sum(record.outcomes.get(kind, 0) for kind in FAILURES)
            shares = {"maj@n": record.majority} | {kind: count / responses for kind, count in failed.items()}
            shares |= {"truncated": record.truncated} | {f"pass@{k}": v for k, v in record.pass_at.items() if k > 1}
            texts = {key: f"{100 * share:.1f}" for key, share in shares.items() if share is not None}
            rows.append(row | {"problems": str(record.problems), "n": str(record.n)} | texts)
    header = list(dict.fromkeys(key for row in rows for key in row))
    return header, [[row.get(key, "") for key in header] for row in rows]


def _accuracy(*records: BenchmarkRecord) -> str:
    """`50.0 [38.1, 61.9]`, of one benchmark or the average of several."""
    estimate = accuracy([np.array([record.per_problem]) for record in records])
    return f"{100 * estimate.mean:.1f} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"
