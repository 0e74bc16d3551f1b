"""The training loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..clock import Clock
from ..errors import Stopped, UserError
from ..grading import open_grader
from ..methods import Method
from ..model.loading import device
from ..model.weights import unsharded
from ..progress import Progress
from ..provenance import seed_of
from ..rollout.open import open_engine
from ..study.schema import Training
from ..tasks.problem import Problem
from ..tasks.prompts import PromptRenderer
from . import checkpoint
from .metrics_log import MetricsLog
from .mtp_heads import warm_up
from .policy import open_policy
from .ranks import gather, is_rank_0, on_rank_0
from .rollout_batch import RolloutBatch, disagreement, draw
from .rollouts import Collector, PromptStream
from .stopping import Stop
from .token_view import keep_tokens
from .update import TrainingBatch, minibatches, update
from .validation import validate

if TYPE_CHECKING:
    from ..study.schema import Model, Prompt


def train(
    *,
    method: Method,
    settings: Training,
    prompt: Prompt,
    grader_name: str,
    seed: int,
    start: str,
    spec: Model,
    train_problems: list[Problem],
    validation_problems: list[Problem],
    run_dir: Path,
    stop: Stop | None = None,
) -> dict[str, Any]:
    """Train ``start`` by ``method`` in ``run_dir``, from the newest checkpoint there is; returns the run's summary.

    Everything random hangs on ``seed`` and the step, so a resumed run continues as the undisturbed one would have.
    ``stop`` is asked after each step; what it ends is saved and raised as `Stopped`. All ranks of a process group call
    this alike (`launch.together`): what reads here as one process is dealt out below (`ranks.py`).
    """
    with checkpoint.run_lock(run_dir), open_grader(grader_name) as grader:
        torch.set_num_threads(settings.threads)
        policy = open_policy(start, spec, method, settings, seed)
        longest = policy.model.config.max_position_embeddings - settings.max_tokens
        renderer = PromptRenderer(policy.tokenizer, prompt, longest)
        stream = PromptStream(train_problems, seed_of("prompts", seed))
        totals = {"updates": 0, "tokens": 0, "samples": 0, "seconds": 0.0}
        first = 0
        waiting: list[RolloutBatch] = []  # batches that were drawn and not trained on yet
        if (state := checkpoint.load_newest(run_dir, policy.parts)) is not None:
            stream.position, first, totals = state["position"], state["step"], state["totals"]
            waiting = [drawn.to(device()) for drawn in state["waiting"]]

        def counters(step: int) -> dict[str, Any]:
            return {"step": step, "position": stream.position, "totals": totals, "waiting": waiting}

        metrics_log = MetricsLog(run_dir, resume_at=first)
        engine = open_engine(
            settings.engine,
            start,
            policy.model,
            policy.tokenizer,
            revision=spec.revision,
            kv_gib=settings.kv_gib,
            colocated=True,
        )
        collector = Collector(stream, engine, grader, renderer, method.sampler, settings, seed)
        if policy.heads is not None and state is None:
            warm_up(policy, method, collector, run_dir)
        label = f"{run_dir.parent.name} {run_dir.name}"

        progress = Progress(range(first, settings.steps), label, settings.steps, first, silent=not is_rank_0())
        for step in progress:
            clock, started = Clock(), time.perf_counter()
            # The few random choices of an objective (Clip-Cov's) hang on the step, not on what came before it.
            torch.manual_seed(seed_of("step", seed, step))

            # Validation comes first: step 0 is the start model, and the last one is done after the loop.
            held_out = {}
            if step % settings.validate_every == 0:
                with clock("validate"):
                    engine.load_weights(policy.model)
                    held_out = validate(validation_problems, engine, grader, renderer, settings)

            # Draw prompts, sample a group of responses for each, judge and read them. Ahead of its time, a batch waits
            # while the policy goes on; what it is off from stays the policy that it was sampled from.
            while len(waiting) <= settings.ahead and step + len(waiting) < settings.steps:
                position = stream.position
                drawn = draw(collector, policy, method, clock)
                if (problem := disagreement(drawn, policy.model, settings.max_mismatch)) is not None:
                    stream.position = position
                    checkpoint.save(run_dir, step, policy.parts, counters(step), settings.keep_every)
                    raise UserError(f"{run_dir}: step {step}: {problem} The run is saved as it was before that batch.")
                waiting.append(drawn)
            rollouts, batch, metrics = waiting.pop(0)

            # The batch, cut into minibatches: each further one is further off-policy, which is what ratios are for.
            updates = []
            with clock("update"):
                if batch is not None:
                    cut = len(rollouts.prompts), settings.group, settings.updates_per_batch
                    for rows in minibatches(*cut, seed_of("minibatches", seed, step)):
                        warmup = min(1.0, (totals["updates"] + 1) / max(1, settings.warmup_updates))
                        for parameters in policy.optimizer.param_groups:
                            parameters["lr"] = parameters["initial_lr"] * warmup
                        part = batch.rows(rows)
                        with _kept_if_harmful(part, run_dir):
                            updates.append(update(policy, part, method, settings))
                        totals["updates"] += 1

            # A few samples, token by token, for a look at what the objective does.
            if batch is not None and (step % settings.validate_every == 0 or step + 1 == settings.steps):
                with clock("record"):
                    keep_tokens(run_dir, step, rollouts, batch, policy, method, settings)

            totals["tokens"] += rollouts.tokens
            totals["samples"] += rollouts.drawn * settings.group
            totals["seconds"] += time.perf_counter() - started
            row = {
                "step": step,
                "sampled_accuracy": rollouts.sampled_accuracy,
                **metrics,
                **_over_updates(updates),
                **held_out,
            }
            metrics_log.write("metrics", row | {f"total_{k}": totals[k] for k in ("updates", "tokens", "samples")})
            metrics_log.write(
                "timings", {"step": step, **clock.report(rollouts.tokens), "total_seconds": totals["seconds"]}
            )
            progress.note = f"accuracy {rollouts.sampled_accuracy:.2f}"

            # Whichever rank is asked to stop, all do after the same step.
            reasons = gather([stop and stop.after_step(time.perf_counter() - started)])
            reason = next(filter(None, reasons), None)
            if reason or ((step + 1) % settings.checkpoint_every == 0 and step + 1 < settings.steps):
                checkpoint.save(run_dir, step + 1, policy.parts, counters(step + 1), settings.keep_every)
            if reason:
                raise Stopped(f"{run_dir}: stopped by {reason} after step {step + 1} of {settings.steps}, and saved.")

        engine.load_weights(policy.model)
        final = validate(validation_problems, engine, grader, renderer, settings)
        metrics_log.write(
            "metrics",
            {"step": settings.steps, **final, **{f"total_{k}": totals[k] for k in ("updates", "tokens", "samples")}},
        )
        final_model: Any = unsharded(policy.model, torch.device("cpu"), keep=is_rank_0())
        on_rank_0(lambda: [what.save_pretrained(run_dir / "model") for what in (final_model, policy.tokenizer)])
        return {**final, **totals}


@contextmanager
def _kept_if_harmful(batch: TrainingBatch, run_dir: Path) -> Iterator[None]:
    """An update that would do harm ends the run, and the batch that caused it is kept for a look."""
    try:
        yield
    except UserError as error:
        path = run_dir / "failed_batch.pt"
        cause = {"ids": batch.sequences.ids, "mask": batch.sequences.mask, "advantages": batch.tokens.advantages}
        on_rank_0(lambda: torch.save(cause, path))
        raise UserError(
            f"{run_dir}: {error} The batch is in {path}; a lower learning rate or a clip may help."
        ) from error


def _over_updates(updates: list[dict[str, float]]) -> dict[str, float]:
    """A step's metrics from its updates': means, and the largest of maxima."""
    if not updates:
        return {}
    columns = {name: [u[name] for u in updates] for name in updates[0]}
    return {name: max(v) if name.endswith("_max") else sum(v) / len(v) for name, v in columns.items()}
