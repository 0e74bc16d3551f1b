"""The training loop."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..clock import Clock
from ..errors import Stopped, UserError
from ..grading import open_grader
from ..hub import pinned
from ..model.device import device, device_errors
from ..model.precision import compute_dtype, compute_name
from ..model.weights import unsharded
from ..objective import Method
from ..progress import Progress
from ..provenance import seed_of
from ..results.layout import DataFolder, RunFolder
from ..results.schema import FinalMetrics
from ..rollout.open import open_engine
from ..study.runs import Arm
from ..study.schema import Study
from ..tasks.problem import Problem, read_problems
from ..tasks.prompts import PromptRenderer
from . import checkpoint
from .gpu import gpu_use
from .head_warm_up import warm_up
from .metrics_log import MetricsLog
from .model_folder import model_folder
from .policy import Policy, open_policy
from .ranks import gather, is_rank_0, on_rank_0
from .rollout_batch import EngineMismatch, RolloutBatch, collect_batch
from .rollouts import Collector, PromptStream, Rollouts
from .stopping import Stop
from .token_view import save_token_view
from .update import TrainingBatch, minibatches, update
from .validation import validate

NO_UPDATES = (
    "no optimizer step was made: dynamic sampling dropped every group, since all of its rewards were equal. The final "
    "model is the initial model. Take one that solves some problems and not all, or more prompts."
)
ON_POLICY = (
    "one update per batch, and nothing is sampled ahead: all importance ratios are 1, so ratio and clip have no effect."
)


@dataclass
class State:
    """The state of a run besides its policy; checkpoints contain both. Random states are keyed by the step."""

    step: int = 0  # steps that are finished
    position: int = 0  # prompts drawn from the stream so far
    totals: dict[str, float] = field(default_factory=lambda: {"updates": 0, "tokens": 0, "samples": 0, "seconds": 0.0})
    waiting: list[RolloutBatch] = field(default_factory=list)  # sampled, not trained on yet
    compute: str | None = None  # precision of the passes

    @property
    def counts(self) -> dict[str, float]:
        """The totals that are determined by the seed, under their names in `metrics.jsonl`."""
        return {f"total_{name}": self.totals[name] for name in ("updates", "tokens", "samples")}


def train(
    study: Study, arm: Arm, seed: int, *, start: str, data: DataFolder, run: RunFolder, stop: Stop | None = None
) -> FinalMetrics:
    """Train the model in ``start`` as an arm of a study, from the newest checkpoint in ``run`` if there is one.

    Random states are keyed by ``seed`` and the step, so a resumed run equals an uninterrupted run bit for bit. ``stop``
    is checked after each step; to stop, the run is saved and `Stopped` is raised. All ranks of a process group call
    this with the same arguments (`launch.process_group`) and share the work of each step (`ranks.py`). The caller holds
    the lock of the run directory.
    """
    method, settings, spec = arm.method(study), arm.training(study), pinned(study.model)
    problems, validation = read_problems(data.train), read_problems(data.validation)
    with_tests = any(problem.tests for problem in [*problems, *validation])
    torch.set_num_threads(settings.threads)
    with device_errors(settings):
        policy = open_policy(start, spec, method, settings, seed)
    with device_errors(settings, policy.state_bytes), open_grader(study.grader, study.extraction, with_tests) as grader:
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
        renderer = PromptRenderer(policy.tokenizer, study.prompt, longest)
        # Controls use another stream of prompts and responses with the same initial model.
        sampling = seed_of("sampling", seed, settings.sampling_seed) if settings.sampling_seed else seed
        stream = PromptStream(problems, seed_of("prompts", sampling))
        collector = Collector(stream, engine, grader, renderer, method.sampler, settings, sampling)
        return Trainer(policy, method, collector, validation, run, stop).train()


class Trainer:
    """The training loop of one run, with the state that its checkpoints save."""

    def __init__(
        self,
        policy: Policy,
        method: Method,
        collector: Collector,
        validation: list[Problem],
        run: RunFolder,
        stop: Stop | None = None,
    ) -> None:
        """Continue from the newest checkpoint in ``run``, if there is one."""
        self.policy, self.method, self.collector, self.run, self.stop = policy, method, collector, run, stop
        self.settings, self.validation = collector.settings, validation
        self.state = State(compute=compute_name(policy.model))
        if (saved := checkpoint.load_newest(run.checkpoints, policy.parts)) is not None:
            _check_precision(policy, saved.pop("compute", None), run)
            saved["waiting"] = [batch.to(device()) for batch in saved["waiting"]]
            self.state = replace(self.state, **saved)
        self.log = MetricsLog(run, resume_at=self.state.step)
        if policy.heads is not None and saved is None:
            warm_up(policy, method, collector, run)

    def train(self) -> FinalMetrics:
        """Train to the last step and save the final model."""
        settings, state, name = self.settings, self.state, f"{self.run.path.parent.name} {self.run.path.name}"
        if state.step == 0 and settings.updates_of_batch == 1 and not settings.ahead and is_rank_0():
            print(f"{self.run.path}: {ON_POLICY}", file=sys.stderr)
        steps = range(state.step, settings.steps)
        progress = Progress(steps, name, settings.steps, state.step, silent=not is_rank_0())
        for step in progress:
            clock, started = Clock(), time.perf_counter()
            # Random choices in an objective (such as Clip-Cov) are keyed by the step.
            torch.manual_seed(seed_of("step", self.collector.seed, step))
            # Validation comes before the updates; the final model is validated after the loop.
            held_out = self._validate(clock) if step % settings.validate_every == 0 else {}
            self._sample(clock)
            rollouts, batch, metrics = state.waiting.pop(0)
            updates = [] if batch is None else self._update(rollouts, batch, clock)

            state.totals["tokens"] += rollouts.tokens
            state.totals["samples"] += rollouts.sampled * settings.group
            state.totals["seconds"] += time.perf_counter() - started
            if settings.ahead:
                metrics["staleness"] = float(min(step, settings.ahead))  # steps since the batch was sampled
            row = {"step": step, "sampled_accuracy": rollouts.sampled_accuracy, **metrics, **_over_updates(updates)}
            self.log.metrics(row | held_out | state.counts)
            used = {**clock.report(rollouts.tokens), **gpu_use(), "total_seconds": state.totals["seconds"]}
            self.log.timings({"step": step, **used})
            progress.note = f"accuracy {rollouts.sampled_accuracy:.2f}"
            state.step += 1
            self._save_or_stop(time.perf_counter() - started)

        if not state.totals["updates"] and is_rank_0():
            print(f"{self.run.path}: {NO_UPDATES}", file=sys.stderr)
        final = self._validate(Clock())
        self.log.metrics({"step": settings.steps, **final, **state.counts})
        self.log.flush()
        _save_final_model(self.policy, self.run)
        return FinalMetrics(**final, steps=settings.steps, **state.totals)

    def _validate(self, clock: Clock) -> dict[str, float]:
        engine, grader, renderer = self.collector.engine, self.collector.grader, self.collector.renderer
        with clock("validate"):
            engine.load_weights(self.policy.model)
            return validate(self.validation, engine, grader, renderer, self.settings)

    def _sample(self, clock: Clock) -> None:
        """Sample batches until one waits for this step and for each of the next `training.ahead` steps.

        A batch has graded groups of responses, and log-probabilities under the policy that sampled it, which is the
        old policy of its ratios.
        """
        state, settings = self.state, self.settings
        while len(state.waiting) <= settings.ahead and state.step + len(state.waiting) < settings.steps:
            try:
                batch = collect_batch(self.collector, self.policy, self.method, clock, state.position)
            except EngineMismatch as error:
                self._save()
                raise UserError(
                    f"{self.run.path}: step {state.step}: {error} The run is saved as it was before."
                ) from error
            state.position += batch.rollouts.sampled
            state.waiting.append(batch)

    def _update(self, rollouts: Rollouts, batch: TrainingBatch, clock: Clock) -> list[dict[str, float]]:
        """One optimizer step per minibatch, each further off-policy than the previous one; returns metrics of each."""
        policy, method, settings, step = self.policy, self.method, self.settings, self.state.step
        seed = seed_of("minibatches", self.collector.seed, step)
        updates = []
        with clock("update"):
            for rows in minibatches(
                len(rollouts.prompts), settings.group, settings.updates_per_batch, seed, settings.epochs
            ):
                self.state.totals["updates"] += 1
                policy.warm_up_rate(self.state.totals["updates"] / max(1, settings.warmup_updates))
                part = batch.rows(rows)
                with _failed_batch_saved(part, self.run):
                    updates.append(update(policy, part, method, settings))
        # The changes of log-probabilities of a few samples' tokens, for `policygrain inspect`.
        if step % settings.checkpoint_every == 0 or step + 1 == settings.steps:
            with clock("record"):
                save_token_view(self.run, step, rollouts, batch, policy, method, settings)
        return updates

    def _save_or_stop(self, seconds: float) -> None:
        """Write a checkpoint where one is due. `Stopped` if any rank has to stop: all do so after the same step."""
        step, settings = self.state.step, self.settings
        reasons = gather([self.stop and self.stop.after_step(seconds)])
        reason = next(filter(None, reasons), None)
        if reason or (step % settings.checkpoint_every == 0 and step < settings.steps):
            self._save()
        if reason:
            raise Stopped(f"{self.run.path}: stopped by {reason} after step {step} of {settings.steps}, and saved.")

    def _save(self) -> None:
        self.log.flush()
        state = self.state
        checkpoint.save(self.run.checkpoints, state.step, self.policy.parts, vars(state), self.settings.keep_every)


def _check_precision(policy: Policy, recorded: str | None, run: RunFolder) -> None:
    """UserError if a run would be resumed in another precision, as `auto` may on another machine."""
    if recorded not in (None, compute_name(policy.model)):
        raise UserError(
            f"{run.path}: was begun with passes in {recorded}, and here they would be in {compute_name(policy.model)} "
            "(training.compute: auto takes what the machine computes fast). Resume it on a machine like the first, or "
            f"remove its folder and set training.compute to {recorded}."
        )


def _save_final_model(policy: Policy, run: RunFolder) -> None:
    """Write the model and its tokenizer, in the precision of its passes: the policy that the engine samples.

    The optimizer's weights contain updates too small for this precision, which had no effect on matrix products: in
    float32 the saved model would differ from the sampled policy.
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
