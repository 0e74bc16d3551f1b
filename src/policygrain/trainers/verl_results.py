"""Converts what verl saved of a run (its log, responses and final model) to the records of a run.

The log has an object per step, `{"step": k, "data": {…}}` (`trainer.logger: [file]`). verl counts steps from 1: its
step k is step k - 1 of our records. A validation at step k is of the policy after k steps, in verl's log and in ours.
"""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..files import atomic_text, json_lines, model_folder
from ..model.loading import load_tokenizer
from ..records import FinalMetrics
from ..train.records import line
from .verl_config import ROLLOUTS, VALIDATIONS

if TYPE_CHECKING:
    from ..paths import RunFolder
    from ..study.schema import Training

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
    "tokens_per_second": "perf/throughput",
}
AGAIN = "It is the log of verl's file logger (VERL_FILE_LOGGER_PATH)."

ByStep = Mapping[int, Mapping[str, Any]]  # verl's step → its numbers


def logs_in(folder: Path) -> list[Path]:
    """The logs of all attempts in an exported folder, in their order."""
    return sorted(folder.glob("metrics*.jsonl"))


def final_model(folder: Path, steps: int) -> Path:
    """The model of the last checkpoint."""
    return folder / "checkpoints" / f"global_step_{steps}" / "actor" / "huggingface"


def read_back(folder: Path, settings: Training, dynamic: bool, run: RunFolder) -> tuple[FinalMetrics, list[str]]:
    """Convert the run that verl trained in ``folder`` to records in ``run``; returns final metrics and notes.

    ``dynamic``: whether verl used dynamic sampling. UserError if steps or the final model are missing.
    """
    log = read_log(logs_in(folder), settings.steps, folder)
    model = final_model(folder, settings.steps)
    if not any(model.glob("*.safetensors")) or not (model / "config.json").exists():
        raise UserError(
            f"{model}: no model in Hugging Face's format. If verl saved only its shards, merge them: python -m "
            "verl.model_merger merge --backend fsdp --local_dir …/global_step_N/actor --target_dir this folder."
        )
    rollouts, validations = (samples(folder / name, model, settings.max_tokens) for name in (ROLLOUTS, VALIDATIONS))
    rows, timings = metric_rows(log, settings, dynamic, rollouts, validations), timing_rows(log)
    last = rows[-1]
    if math.isnan(last.get("validation_accuracy", math.nan)):
        raise UserError("verl's log has no validation after the last step (trainer.test_freq of the exported arm).")
    with model_folder(run.model, again="it reads verl's run again") as into:
        shutil.copytree(model, into)
    atomic_text(run.metrics, "".join(map(line, rows)))
    atomic_text(run.timings, "".join(map(line, timings)))
    notes = []
    if dynamic:
        notes.append(
            "verl replaced dropped groups by other groups than the loop, so the run is not paired with one of the "
            "loop; verl logs nothing about dropped groups: `sampled_accuracy` is empty, and `total_tokens` estimated"
        )
    final = FinalMetrics(
        validation_accuracy=last["validation_accuracy"],
        validation_length=last["validation_length"],
        steps=len(rows) - 1,
        updates=last["total_updates"],
        tokens=last["total_tokens"],
        samples=last["total_samples"],
        seconds=timings[-1]["total_seconds"],
    )
    return final, notes


def samples(folder: Path, model: Path, most: int) -> dict[int, dict[str, float]]:
    """Numbers of the responses in each file of `trainer.rollout_data_dir` or `trainer.validation_data_dir`."""
    files = {int(path.stem): path for path in folder.glob("*.jsonl") if path.stem.isdigit()}
    tokenizer = load_tokenizer(str(model)) if files else None
    steps = {}
    for step, path in files.items():
        rows = [row for _, row in json_lines(path, "It was written by verl.")]
        if not rows or any({"output", "score"} - row.keys() for row in rows):
            raise UserError(f"{path}: expected lines with output and score, as verl 0.9 writes them.")
        assert tokenizer is not None
        ids = tokenizer([str(row["output"]) for row in rows], add_special_tokens=False).input_ids
        # The text lacks the token that ends a response.
        steps[step] = {
            "length": statistics.fmean(min(len(tokens) + 1, most) for tokens in ids),
            # verl's own share counts the responses that are as long as the longest of their batch.
            "truncated_share": statistics.fmean(len(tokens) >= most for tokens in ids),
            "reward_std": statistics.stdev(float(row["score"]) for row in rows) if len(rows) > 1 else math.nan,
        }
    return steps


def read_log(paths: Iterable[Path], steps: int, folder: Path) -> ByStep:
    """verl's metrics by its step, from 0 (validation of the initial model, if there was one) to ``steps``.

    ``paths``: the log of each attempt, in order. If several logs have a step, later values replace earlier ones: a
    resumed run repeats the steps since its checkpoint, and validates at its beginning. UserError if a step is missing.
    """
    log: dict[int, dict[str, Any]] = {}
    for path in paths:
        for number, row in json_lines(path, AGAIN, cut_off=[]):  # of an attempt that was killed
            step, data = row.get("step"), row.get("data")
            if not isinstance(step, int) or not isinstance(data, dict):
                raise UserError(f"{path}, line {number}: expected `step` and `data`. {AGAIN}")
            # verl writes NaN as null.
            log[step] = log.get(step, {}) | {name: math.nan if v is None else v for name, v in data.items()}
    if missing := [step for step in range(1, steps + 1) if step not in log]:
        shown = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        raise UserError(
            f"{folder}: the logs metrics*.jsonl lack {len(missing)} of {steps} steps ({shown}). Either verl's run has "
            "not ended, or it was resumed: verl's file logger then overwrites its file. Give the log of each attempt a "
            "name of its own."
        )
    if max(log) > steps:
        raise UserError(f"{folder}: verl's log has {max(log)} steps, and the exported arm {steps}.")
    return log


def metric_rows(
    log: ByStep, settings: Training, dynamic: bool, rollouts: ByStep, validations: ByStep
) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl`: one per step, and the final validation.

    With ``dynamic`` sampling, verl logs only the number of dropped groups: their responses are assumed to be as long as
    the others.
    """
    rows: list[dict[str, Any]] = []
    totals = {"total_updates": 0, "total_tokens": 0, "total_samples": 0}
    for step in range(max(log) + 1):
        row: dict[str, Any] = {"step": step}
        means = [v for name, v in log.get(step, {}).items() if name.startswith("val-core/") and "/mean@" in name]
        if means:
            length = validations.get(step, {}).get("length", math.nan)
            row |= {"validation_accuracy": float(means[0]), "validation_length": length}
        if step < max(log):
            data = log[step + 1]
            row |= {ours: float(data[theirs]) for ours, theirs in METRICS.items() if theirs in data}
            row |= {n.rpartition("/")[2]: float(v) for n, v in data.items() if n.startswith(PLUGIN)}
            row["accuracy"] = row.get("reward_mean")
            row["sampled_accuracy"] = None if dynamic else row["accuracy"]
            row |= {name: v for name, v in rollouts.get(step + 1, {}).items() if name != "length" and not math.isnan(v)}
            for name in ("response_length_mean", "groups_dropped"):
                if math.isnan(row.get(name, 0)):
                    raise UserError(f"verl's log has no number for {name} at step {step + 1} (null), which is counted.")
            sampled = (settings.prompts_per_step + int(row.get("groups_dropped", 0))) * settings.group
            totals["total_updates"] += settings.updates_of_batch
            totals["total_tokens"] += round(row.get("response_length_mean", 0) * sampled)
            totals["total_samples"] += sampled
        rows.append(row | totals)
    return rows


def timing_rows(log: ByStep) -> list[dict[str, Any]]:
    """The rows of `timings.jsonl`."""
    rows: list[dict[str, Any]] = []
    total = 0.0
    for step in range(1, max(log) + 1):
        timings = {ours: float(log[step][theirs]) for ours, theirs in TIMINGS.items() if theirs in log[step]}
        total += timings.get("seconds/total", 0.0)
        rows.append({"step": step - 1, **timings, "total_seconds": total})
    return rows
