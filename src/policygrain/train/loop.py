"""The training loop."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ..clock import Clock
from ..errors import Stopped, UserError
from ..grading import open_grader
from ..model.device import device, device_errors
from ..model.precision import compute_dtype, compute_name
from ..model.weights import unsharded
from ..objective import Method
from ..progress import Progress
from ..provenance import seed_of
from ..results.layout import RunFolder
from ..results.schema import FinalMetrics
from ..rollout.open import open_engine
from ..study.schema import Training
from ..tasks.problem import Problem
from ..tasks.prompts import PromptRenderer
from . import checkpoint
from .gpu import gpu_use
from .metrics_log import MetricsLog
from .model_folder import model_folder
from .mtp_heads import warm_up
from .policy import Policy, open_policy
from .ranks import gather, is_rank_0, on_rank_0
from .rollout_batch import EngineMismatch, RolloutBatch, collect_batch
from .rollouts import Collector, PromptStream
from .stopping import Stop
from .token_view import save_token_view
from .update import TrainingBatch, minibatches, update
from .validation import validate

if TYPE_CHECKING:
    from ..study.schema import Model, Prompt

NO_UPDATES = (
    "no optimizer step was made: dynamic sampling dropped every group, since all of its rewards were equal. The final "
    "model is the start model. Take a start model that solves some problems and not all, or more prompts."
)
ON_POLICY = (
    "one update per batch, and nothing is sampled ahead: all importance ratios are 1, so ratio and clip have no effect."
)


def train(
    *,
    method: Method,
    settings: Training,
    prompt: Prompt,
    grader_name: str,
    extraction: str,
    seed: int,
    start: str,
    spec: Model,
    train_problems: list[Problem],
    validation_problems: list[Problem],
    run: RunFolder,
    stop: Stop | None = None,
) -> FinalMetrics:
    """Train ``start`` by ``method``, from the newest checkpoint in ``run`` if there is one.

    Random states are keyed by ``seed`` and the step, so a resumed run equals an uninterrupted run bit for bit. ``stop``
    is checked after each step; to stop, the run is saved and `Stopped` is raised. All ranks of a process group call
    this with the same arguments (`launch.process_group`) and share the work of each step (`ranks.py`). The caller holds
    the lock of the run directory.
    """
    with_tests = any(problem.tests for problem in [*train_problems, *validation_problems])
    torch.set_num_threads(settings.threads)
    with device_errors(settings):
        policy = open_policy(start, spec, method, settings, seed)
    with device_errors(settings, policy.state_bytes), open_grader(grader_name, extraction, with_tests) as grader:
        engine = open_engine(
            settings.engine,
            start,
            policy.model,
            policy.tokenizer,
            revision=spec.revision,
            kv_gib=settings.kv_gib,
            colocated=True,
        )
        longest = policy.model.config.max_position_embeddings - settings.max_tokens
        renderer = PromptRenderer(policy.tokenizer, prompt, longest)
        # Controls sample another stream of prompts and responses from the same start.
        sampling = seed_of("sampling", seed, settings.sampling_seed) if settings.sampling_seed else seed
        stream = PromptStream(train_problems, seed_of("prompts", sampling))
        totals = {"updates": 0, "tokens": 0, "samples": 0, "seconds": 0.0}
        first = 0
        waiting: list[RolloutBatch] = []  # sampled, not trained on yet
        if (state := checkpoint.load_newest(run.checkpoints, policy.parts)) is not None:
            stream.position, first, totals = state["position"], state["step"], state["totals"]
            waiting = [batch.to(device()) for batch in state["waiting"]]
            _check_precision(policy, state.get("compute"), run)

        def counters(step: int) -> dict[str, Any]:
            return {
                "step": step,
                "position": stream.position,
                "totals": totals,
                "waiting": waiting,
                "compute": compute_name(policy.model),
            }

        def save(step: int) -> None:
            log.flush()
            checkpoint.save(run.checkpoints, step, policy.parts, counters(step), settings.keep_every)

        log = MetricsLog(run, resume_at=first)
        collector = Collector(stream, engine, grader, renderer, method.sampler, settings, sampling)
        if policy.heads is not None and state is None:
            warm_up(policy, method, collector, run)
        label = f"{run.path.parent.name} {run.path.name}"
        if first == 0 and settings.updates_of_batch == 1 and not settings.ahead and is_rank_0():
            print(f"{run.path}: {ON_POLICY}", file=sys.stderr)

        progress = Progress(range(first, settings.steps), label, settings.steps, first, silent=not is_rank_0())
        for step in progress:
            clock, started = Clock(), time.perf_counter()
            # Random choices in an objective (such as Clip-Cov) are keyed by the step.
            torch.manual_seed(seed_of("step", sampling, step))

            # Validate first: step 0 is the start model; the final model is validated after the loop.
            held_out = {}
            if step % settings.validate_every == 0:
                with clock("validate"):
                    engine.load_weights(policy.model)
                    held_out = validate(validation_problems, engine, grader, renderer, settings)

            # Sample a group of responses for each prompt, grade them, compute their log-probabilities. With
            # `training.ahead`, batches are sampled some steps before they are trained on; the old policy of a ratio is
            # the one that sampled the batch.
            while len(waiting) <= settings.ahead and step + len(waiting) < settings.steps:
                position = stream.position
                try:
                    waiting.append(collect_batch(collector, policy, method, clock))
                except EngineMismatch as error:
                    stream.position = position
                    save(step)
                    raise UserError(f"{run.path}: step {step}: {error} The run is saved as it was before.") from error
            rollouts, batch, metrics = waiting.pop(0)
            if settings.ahead:
                metrics["staleness"] = float(min(step, settings.ahead))  # steps since it was sampled

            # One optimizer step per minibatch; each step is further off-policy than the previous one.
            updates = []
            with clock("update"):
                if batch is not None:
                    sizes = len(rollouts.prompts), settings.group, settings.updates_per_batch
                    for rows in minibatches(*sizes, seed_of("minibatches", sampling, step), settings.epochs):
                        warmup = min(1.0, (totals["updates"] + 1) / max(1, settings.warmup_updates))
                        for parameters in policy.optimizer.param_groups:
                            parameters["lr"] = parameters["initial_lr"] * warmup
                        part = batch.rows(rows)
                        with _failed_batch_saved(part, run):
                            updates.append(update(policy, part, method, settings))
                        totals["updates"] += 1

            # Save the changes of log-probabilities for the tokens of a few samples, for `policygrain inspect`.
            if batch is not None and (step % settings.checkpoint_every == 0 or step + 1 == settings.steps):
                with clock("record"):
                    save_token_view(run, step, rollouts, batch, policy, method, settings)

            totals["tokens"] += rollouts.tokens
            totals["samples"] += rollouts.sampled * settings.group
            totals["seconds"] += time.perf_counter() - started
            row = {
                "step": step,
                "sampled_accuracy": rollouts.sampled_accuracy,
                **metrics,
                **_over_updates(updates),
                **held_out,
            }
            log.metrics(row | {f"total_{k}": totals[k] for k in ("updates", "tokens", "samples")})
            used = {**clock.report(rollouts.tokens), **gpu_use()}
            log.timings({"step": step, **used, "total_seconds": totals["seconds"]})
            progress.note = f"accuracy {rollouts.sampled_accuracy:.2f}"

            # If any rank has to stop, all ranks stop after the same step.
            reasons = gather([stop and stop.after_step(time.perf_counter() - started)])
            reason = next(filter(None, reasons), None)
            if reason or ((step + 1) % settings.checkpoint_every == 0 and step + 1 < settings.steps):
                save(step + 1)
            if reason:
                raise Stopped(f"{run.path}: stopped by {reason} after step {step + 1} of {settings.steps}, and saved.")

        if not totals["updates"] and is_rank_0():
            print(f"{run.path}: {NO_UPDATES}", file=sys.stderr)
        engine.load_weights(policy.model)
        final = validate(validation_problems, engine, grader, renderer, settings)
        counted = {f"total_{k}": totals[k] for k in ("updates", "tokens", "samples")}
        log.metrics({"step": settings.steps, **final, **counted})
        log.flush()
        _save_final_model(policy, run)
        return FinalMetrics(**final, steps=settings.steps, **totals)


def _check_precision(policy: Policy, found: str | None, run: RunFolder) -> None:
    """UserError if a run would be resumed in another precision, which `auto` means on another machine."""
    if found not in (None, compute_name(policy.model)):
        raise UserError(
            f"{run.path}: was begun with passes in {found}, and here they would be in {compute_name(policy.model)} "
            "(training.compute: auto takes what the machine computes fast). Resume it on a machine like the first, or "
            f"remove its folder and set training.compute to {found}."
        )


def _save_final_model(policy: Policy, run: RunFolder) -> None:
    """Write the model and its tokenizer, in the precision of its passes: the policy that the engine samples.

    Updates too small for this precision are in the weights that the optimizer holds, but had no effect on a product of
    matrices: in float32 they would make another policy.
    """
    dtype = compute_dtype(policy.model)
    model: Any = unsharded(policy.model, torch.device("cpu"), keep=is_rank_0(), dtype=dtype)

    def save() -> None:
        with model_folder(run.model, again="it resumes from the last checkpoint") as folder:
            for part in (model, policy.tokenizer):
                part.save_pretrained(folder)

    on_rank_0(save)


@contextmanager
def _failed_batch_saved(batch: TrainingBatch, run: RunFolder) -> Iterator[None]:
    """Save the batch if its update raises a UserError, for inspection."""
    try:
        yield
    except UserError as error:
        content = {"ids": batch.sequences.ids, "mask": batch.sequences.mask, "advantages": batch.tokens.advantages}
        on_rank_0(lambda: torch.save(content, run.failed_batch))
        raise UserError(
            f"{run.path}: {error} The batch is saved in {run.failed_batch}; a lower learning rate or a clip may help."
        ) from error


def _over_updates(updates: list[dict[str, float]]) -> dict[str, float]:
    """The metrics of a step from those of its updates: means, and maxima for names that end with `_max`."""
    if not updates:
        return {}
    columns = {name: [u[name] for u in updates] for name in updates[0]}
    return {name: max(v) if name.endswith("_max") else sum(v) / len(v) for name, v in columns.items()}
