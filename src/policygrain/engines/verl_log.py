"""What verl saves: its log as the rows of a run's `metrics.jsonl` and `timings.jsonl`, and its responses, graded again.

The log has an object per step, `{"step": k, "data": {…}}` (`trainer.logger: [file]`). verl's step k is our step k - 1;
its validation at step k is of the policy after k steps, which our log has at the beginning of step k.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError
from ..files import json_lines
from ..grading import open_grader
from ..model.loading import load_tokenizer
from ..results.schema import EvaluatedSample, ExportRecord

# Our metric → verl's. The plugin's own metrics, `policygrain/NAME`, have our names already.
METRICS = {
    "reward_mean": "critic/score/mean",
    "entropy_old": "actor/entropy",
    "response_length_mean": "response_length/mean",
    "response_length_max": "response_length/max",
    "truncated_share": "response_length/clip_ratio",
    "groups_dropped": "training/filter_groups/evicted_samples",
    "kl_old": "actor/ppo_kl",
    "policy_loss": "actor/pg_loss",
    "gradient_norm": "actor/grad_norm",
    "learning_rate": "actor/lr",
}
PLUGIN = ("policygrain/", "actor/policygrain/")
TIMINGS = {
    "seconds/generate": "timing_s/gen",
    "seconds/reward": "timing_s/reward",
    "seconds/log_probs": "timing_s/old_log_prob",
    "seconds/update": "timing_s/update_actor",
    "seconds/synchronise": "timing_s/update_weights",
    "seconds/validate": "timing_s/testing",
    "seconds/total": "timing_s/step",
}
AGAIN = "It is the log of verl's file logger (VERL_FILE_LOGGER_PATH)."

Log = dict[int, dict[str, Any]]


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
    """(verl's step, graded responses) of each file of `trainer.rollout_data_dir` or `trainer.validation_data_dir`."""
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


def read_log(paths: Iterable[Path], steps: int, folder: Path) -> Log:
    """verl's metrics by its step, from 0 (validation of the initial model, where it was done) to ``steps``.

    ``paths``: the log of each attempt, in their order. Of a step that several have, the later values count: a resumed
    run repeats the steps since its checkpoint, and validates at its beginning. UserError if a step is missing.
    """
    log: Log = {}
    for path in paths:
        for number, row in json_lines(path, AGAIN):
            step, data = row.get("step"), row.get("data")
            if not isinstance(step, int) or not isinstance(data, dict):
                raise UserError(f"{path}, line {number}: expected `step` and `data`. {AGAIN}")
            log[step] = {**log.get(step, {}), **data}
    if not log:
        raise UserError(f"{folder}: no metrics*.jsonl here; name verl's log by --log. {AGAIN}")
    if missing := [step for step in range(1, steps + 1) if step not in log]:
        shown = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        raise UserError(
            f"{folder}: verl's log lacks {len(missing)} of {steps} steps ({shown}). Either the run has not ended, or "
            "it was resumed: verl's file logger then overwrites its file. Name the log of each attempt by --log."
        )
    if max(log) > steps:
        raise UserError(f"{folder}: verl's log has {max(log)} steps, and the exported arm {steps}.")
    return log


def metric_rows(
    log: Log,
    training: Mapping[str, Any],
    dynamic: bool,
    samples: Mapping[int, Samples],
    validated: Mapping[int, Samples],
) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl`: one per step, and the final validation.

    With ``dynamic`` sampling, verl logs how many groups were dropped and nothing about them: their length is taken to
    be that of the others.
    """
    per_step = training["prompts_per_step"] * training["group"]
    rows: list[dict[str, Any]] = []
    totals = {"total_updates": 0, "total_tokens": 0, "total_samples": 0}
    for step in range(max(log) + 1):
        row: dict[str, Any] = {"step": step, **_validation(log.get(step, {}), validated.get(step))}
        if step < max(log):
            data = log[step + 1]
            row |= {ours: float(data[theirs]) for ours, theirs in METRICS.items() if theirs in data}
            row |= {n.rpartition("/")[2]: float(v) for n, v in data.items() if n.startswith(PLUGIN)}
            row |= _of_samples(row, samples.get(step))
            row["sampled_accuracy"] = None if dynamic else row["accuracy"]
            sampled = per_step + int(row.get("groups_dropped", 0)) * training["group"]
            totals["total_updates"] += training["updates_per_batch"] * training.get("epochs", 1)
            totals["total_tokens"] += round(row.get("response_length_mean", 0) * sampled)
            totals["total_samples"] += sampled
        rows.append(row | totals)
    return rows


def timing_rows(log: Log) -> list[dict[str, Any]]:
    """The rows of `timings.jsonl`."""
    rows: list[dict[str, Any]] = []
    total = 0.0
    for step in range(1, max(log) + 1):
        timings = {ours: float(log[step][theirs]) for ours, theirs in TIMINGS.items() if theirs in log[step]}
        total += timings.get("seconds/total", 0.0)
        if "perf/throughput" in log[step]:
            timings["tokens_per_second"] = float(log[step]["perf/throughput"])
        rows.append({"step": step - 1, **timings, "total_seconds": total})
    return rows


def _of_samples(row: Mapping[str, Any], samples: Samples | None) -> dict[str, Any]:
    if samples is None:
        return {"accuracy": row.get("reward_mean")}
    spread = {"reward_std": statistics.stdev(samples.scores)} if len(samples.scores) > 1 else {}
    # verl's own share counts the responses that are as long as the longest of their batch.
    return {"accuracy": samples.accuracy, "truncated_share": samples.truncated, **spread}


def _validation(data: Mapping[str, Any], samples: Samples | None) -> dict[str, float]:
    """Accuracy and length of the validation in a log entry; empty if there was none."""
    means = [value for name, value in data.items() if name.startswith("val-core/") and "/mean@" in name]
    if not means:
        return {}
    if samples is None:
        return {"validation_accuracy": float(means[0]), "validation_length": math.nan}
    length = statistics.fmean(row.tokens for row in samples.rows)
    return {"validation_accuracy": samples.accuracy, "validation_length": length}
