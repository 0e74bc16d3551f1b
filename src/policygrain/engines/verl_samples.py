"""The responses that verl saved (`trainer.rollout_data_dir`, `trainer.validation_data_dir`), graded again."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError
from ..files import json_lines
from ..grading import open_grader
from ..model.loading import load_tokenizer
from ..results.schema import EvaluatedSample, ExportRecord


class Samples(NamedTuple):
    """The graded responses of a step."""

    rows: list[EvaluatedSample]
    scores: list[float]  # verl's rewards

    @property
    def accuracy(self) -> float:
        """Share that our grader finds correct."""
        return statistics.fmean(row.outcome == "correct" for row in self.rows)

    @property
    def truncated(self) -> float:
        """Share that is as long as responses may be."""
        return statistics.fmean(not row.finished for row in self.rows)

    @property
    def disagreements(self) -> int:
        """Number of responses on which verl's reward and this grader disagree."""
        return sum((s > 0.5) != (r.outcome == "correct") for r, s in zip(self.rows, self.scores, strict=True))


def graded_samples(folder: Path, exported: ExportRecord, model: Path) -> Iterable[tuple[int, Samples]]:
    """(verl's step, graded responses) of each file that verl wrote into ``folder``."""
    files = {int(path.stem): path for path in folder.glob("*.jsonl") if path.stem.isdigit()}
    if not files:
        return
    tokenizer = load_tokenizer(str(model))
    most = exported.config.training["max_tokens"]
    with open_grader(exported.grader, exported.extraction) as grader:
        for step, path in sorted(files.items()):
            rows = [row for _, row in json_lines(path, "It was written by verl.")]
            if not rows or any({"input", "output", "gts", "score"} - row.keys() for row in rows):
                raise UserError(f"{path}: expected lines with input, output, gts and score, as verl 0.9 writes them.")
            texts = [str(row["output"]) for row in rows]
            outcomes = grader.grade([str(row["gts"]) for row in rows], texts)
            lengths = [len(ids) for ids in tokenizer(texts, add_special_tokens=False).input_ids]
            yield step, Samples(_samples(rows, outcomes, lengths, most), [float(row["score"]) for row in rows])


def _samples(
    rows: Sequence[Mapping[str, Any]], outcomes: Sequence[str], lengths: Sequence[int], most: int
) -> list[EvaluatedSample]:
    """verl's lines with grades; prompts are numbered in their order, and the responses to each."""
    numbers: dict[str, int] = {}
    counts: dict[str, int] = {}
    samples = []
    for row, outcome, tokens in zip(rows, outcomes, lengths, strict=True):
        prompt = str(row["input"])
        number = numbers.setdefault(prompt, len(numbers))
        counts[prompt] = counts.get(prompt, 0) + 1
        samples.append(
            EvaluatedSample(
                id=str(number),
                sample=counts[prompt] - 1,
                outcome=outcome,
                gold=str(row["gts"]),
                problem=prompt,
                response=str(row["output"]),
                tokens=min(tokens + 1, most),  # the text lacks the token that ends a response
                finished=tokens < most,
            )
        )
    return samples
