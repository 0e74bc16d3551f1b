"""A page to browse the samples of one model, or of two side by side: one HTML file that needs no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from markupsafe import Markup
from pydantic import BaseModel, ValidationError

from ..analysis.statistics import interval
from ..errors import UserError
from ..evaluate.reading import AGAIN, Entry, Judged, Record, benchmarks_of, parse
from ..files import atomic_text
from ..study.schema import Prompt
from ..tasks.prompts import PromptRenderer
from .html import content_security_policy, render
from .show import protocol

MOST = 20_000  # samples in one page, which a browser shows without a noticeable pause
_PLACE = "\N{OBJECT REPLACEMENT CHARACTER}"  # stands for the problem in a prompt


class Sample(BaseModel):
    """A line of evaluation/BENCHMARK.jsonl."""

    id: str
    sample: int
    outcome: str
    gold: str
    problem: str
    response: str
    tokens: int
    finished: bool


def write_page(entries: Sequence[Entry], out: Path) -> Path:
    """Write the samples of one run, or of two, as one self-contained HTML file; its path."""
    if len(entries) > 2 or any(len(e.models) > 1 or e.models[0].folder is None for e in entries):
        raise UserError("--page shows the samples of one run or of two; name their folders (…/runs/ARM/seedS).")
    count = sum(sum(r.outcomes.values()) for e in entries for r in e.models[0].records.values())
    if count > MOST:
        raise UserError(f"--page: {count:,} samples, and a page holds {MOST:,}; choose with --benchmark NAME.")
    runs = [(e.name, e.models[0]) for e in entries]
    content = {
        "runs": [{"name": name, "prompt": _prompt(model)} for name, model in runs],
        "protocol": "\n".join(protocol(entries)[1:]),
        "benchmarks": [_benchmark(name, [model for _, model in runs]) for name in benchmarks_of(entries)],
    }
    atomic_text(out, page(content, " and ".join(name for name, _ in runs)))
    return out


def page(content: dict[str, Any], title: str) -> str:
    """The page of ``content``."""
    folder = resources.files(__package__)
    script = (folder / "samples.js").read_text(encoding="utf-8")
    return render(
        folder / "samples.html",
        title=title,
        content=content,
        script=Markup(script),  # code is not escaped
        policy=content_security_policy(script),
    )


def samples(model: Judged, record: Record) -> list[Sample]:
    """The samples of one record; UserError if they are missing, broken, or of another evaluation."""
    assert model.folder is not None
    path = model.folder / f"{record.benchmark}.jsonl"
    if not path.exists():
        raise UserError(f"{path}: the samples are missing. {AGAIN}")
    lines = path.read_bytes().splitlines()
    rows = [parse(Sample, line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]
    if Counter(row.outcome for row in rows) != Counter(record.outcomes):
        raise UserError(f"{path}: these are not the samples that records.json counts. {AGAIN}")
    return rows


def _benchmark(name: str, models: Sequence[Judged]) -> dict[str, Any]:
    """The data of one benchmark for samples.js.

    `problems` has each problem once; `samples` has [index of the problem, number of the sample, per model
    [outcome, tokens, finished, response] or None].
    """
    problems: dict[tuple[str, str, str], int] = {}
    pairs: dict[tuple[int, int], list[list[Any] | None]] = {}
    for i, model in enumerate(models):
        for row in samples(model, model.records[name]) if name in model.records else []:
            problem = problems.setdefault((row.id, row.problem, row.gold), len(problems))
            pair = pairs.setdefault((problem, row.sample), [None] * len(models))
            pair[i] = [row.outcome, row.tokens, row.finished, row.response]
    scores = [m.records[name].per_problem if name in m.records else None for m in models]
    return {
        "name": name,
        "accuracy": [interval(np.array(s)) if s else None for s in scores],
        "problems": list(problems),
        "samples": [[*place, pair] for place, pair in sorted(pairs.items(), key=lambda item: item[0])],
    }


def _prompt(model: Judged) -> list[str] | None:
    """The text before and after a problem in the prompt; None where it is not known.

    The run's study file says how prompts were rendered; its digest must equal that of the evaluation's protocol.
    """
    assert model.folder is not None
    run = model.folder.parent
    study = next((p / "study.yaml" for p in run.parents[:3] if (p / "study.yaml").exists()), None)
    if study is None:
        return None
    try:
        prompt = Prompt.model_validate(yaml.safe_load(study.read_text(encoding="utf-8"))["prompt"])
        tokenizer: Any = None
        if prompt.chat:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(run / "model")
        renderer = PromptRenderer(tokenizer, prompt)
        parts = renderer.text(_PLACE).split(_PLACE)
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError, ValidationError, UserError):
        return None
    return parts if len(parts) == 2 and renderer.digest == model.protocol.get("prompt") else None
