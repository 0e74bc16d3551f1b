"""The records that training writes: metrics and timings of each step, the status of the run, views of tokens."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import Stopped, UserError
from ..files import atomic_text, flush
from ..job_state import run_status
from ..objective import Method
from ..paths import RunFolder
from ..records import RunStatus, TokenSample, TokenView, write_record
from ..study.schema import Training
from .policy import ScoredPolicy
from .ranks import is_rank_0, on_rank_0
from .rollout_batch import TrainingBatch
from .rollouts import Rollouts

GROUPS = 2  # prompts of the batch that are saved with all their responses


class MetricsLog:
    """Appends a line per step to `metrics.jsonl` (determined by the seed) and `timings.jsonl` (not reproducible)."""

    def __init__(self, run: RunFolder, resume_at: int) -> None:
        """Keep the lines of the steps before ``resume_at``. UserError if one is missing."""
        self.run = run
        for path in (run.metrics, run.timings):
            on_rank_0(functools.partial(_truncate, path, resume_at))

    def metrics(self, row: dict[str, Any]) -> None:
        """Append a step's metrics."""
        _append(self.run.metrics, row)

    def timings(self, row: dict[str, Any]) -> None:
        """Append a step's timings."""
        _append(self.run.timings, row)

    def flush(self) -> None:
        """Flush both files to disk; called before a checkpoint is written."""
        if is_rank_0():
            for path in (self.run.metrics, self.run.timings):
                if path.exists():
                    flush(path)


def _truncate(path: Path, resume_at: int) -> None:
    """Remove the lines of steps from ``resume_at`` on, which are repeated. UserError if an earlier line is missing."""
    lines = path.read_bytes().splitlines()[:resume_at] if path.exists() else []
    for step in range(resume_at):
        try:
            recorded_step = json.loads(lines[step].decode("utf-8"))["step"]
        except (IndexError, ValueError, KeyError, TypeError, RecursionError):
            recorded_step = None
        if recorded_step != step:
            raise UserError(
                f"{path}: line {step + 1} is not step {step}, but there is a checkpoint of step {resume_at}: lines "
                f"were lost. Remove the folder {path.parent} to train the run from its beginning."
            )
    atomic_text(path, "".join(line.decode("utf-8") + "\n" for line in lines))


def line(row: Mapping[str, Any]) -> str:
    """``row`` as a line of `metrics.jsonl` or `timings.jsonl`; NaN and infinity are null."""
    return json.dumps({k: _plain(v) for k, v in row.items()}) + "\n"


def _append(path: Path, row: dict[str, Any]) -> None:
    if not is_rank_0():
        return
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line(row))
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written: {error.strerror}. Free some space and run the command again: it resumes."
        ) from error


def _plain(value: Any) -> Any:
    """``value``, or None for NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def recorded_status(run: RunFolder, key: str) -> Iterator[None]:
    """Context of one attempt to train a run: its status is `RUNNING` inside, and the outcome afterwards."""
    begun = on_rank_0(lambda: _begin(run, key))

    def end(status: str, reason: str = "") -> None:
        ended = begun.model_copy(update={"status": status, "ended": time.time(), "reason": reason})
        write_record(run.status, ended)

    try:
        yield
    except BaseException as error:
        stopped = isinstance(error, Stopped | KeyboardInterrupt | SystemExit)
        # Not a collective operation, because other ranks may have ended. If the disk is full, ``error`` is shown.
        with contextlib.suppress(OSError, UserError):
            if is_rank_0():
                end("KILLED" if stopped else "FAILED", str(error) or type(error).__name__)
        raise
    on_rank_0(lambda: end("FINISHED"))


def complete_status(run: RunFolder) -> None:
    """Mark a run as finished if its process was killed after it had written the summary."""
    if (status := run_status(run)) is not None and status.status != "FINISHED":
        ended = run.summary.stat().st_mtime
        write_record(run.status, status.model_copy(update={"status": "FINISHED", "ended": ended, "reason": ""}))


def _begin(run: RunFolder, key: str) -> RunStatus:
    before = run_status(run)
    if before is None or before.key != key:
        before = RunStatus(key=key, status="RUNNING", started=time.time(), attempts=0)
    begun = RunStatus(key=key, status="RUNNING", started=before.started, attempts=before.attempts + 1)
    write_record(run.status, begun)
    return begun


def save_token_view(
    run: RunFolder,
    step: int,
    rollouts: Rollouts,
    batch: TrainingBatch,
    policy: ScoredPolicy,
    method: Method,
    settings: Training,
) -> None:
    """Write the first groups of a batch with their log-probabilities after the step's updates."""
    assert batch.scored_entropy is not None
    rows = torch.arange(min(GROUPS * settings.group, len(batch.scored_entropy)))
    part = batch.rows(rows)
    now = policy.score(part.sequences, settings)
    decode = policy.tokenizer.decode
    old_entropy = batch.scored_entropy[rows, : now.entropy.shape[1]]
    after = {"log_probs": now.log_probs, "entropy": now.entropy, "future_log_probs": now.future}
    tokens = part.tokens.replace(**after, old_entropy=old_entropy, step=None)
    columns = {
        "log_prob_old": tokens.old_log_probs,
        "log_prob": tokens.log_probs,
        "entropy_change": now.entropy - old_entropy,
        "in_loss": tokens.mask,
        **method.view(tokens),
    }
    advantages = method.advantages(rollouts.rewards)
    samples = []
    for row in rows.tolist():
        prompt, place = divmod(row, settings.group)
        response = rollouts.responses[prompt][place]
        length = len(response.ids)
        samples.append(
            TokenSample(
                prompt=decode(rollouts.prompts[prompt]),
                reward=rollouts.rewards[prompt, place].item(),
                correct=bool(rollouts.correct[prompt, place]),
                advantage=advantages[prompt, place].item(),
                tokens=[decode([token]) for token in response.ids],
                **{name: _rounded(values[row, :length]) for name, values in columns.items()},
            )
        )
    on_rank_0(lambda: write_record(run.tokens(step), TokenView(step=step, method=method.name, samples=samples)))


def _rounded(values: torch.Tensor) -> list[Any]:
    return values.tolist() if values.dtype == torch.bool else [round(v, 6) for v in values.tolist()]
