"""The parts of a training step that do not depend on the trainer: validation, sampling, records and the final model."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from ..clock import Clock
from ..data.problem import Problem, read_problems
from ..data.prompts import PromptRenderer
from ..errors import UserError
from ..files import model_folder
from ..grading import open_grader
from ..hub import pinned
from ..model.device import device, no_updates_yet, updates_are_made
from ..model.open_engine import open_engine
from ..model.precision import compute_dtype, compute_name
from ..model.vllm_engine import MAX_SEQUENCES
from ..model.weights import merged
from ..objective import Method
from ..paths import DataFolder, RunFolder
from ..progress import Progress
from ..provenance import seed_of
from ..records import FinalMetrics
from ..study.runs import Arm
from ..study.schema import Study, Training
from .policy import ScoredPolicy
from .ranks import gather, is_rank_0, on_rank_0
from .records import MetricsLog
from .rollout_batch import RolloutBatch, TrainingBatch, collect_batches, reads_engine
from .rollouts import Collector, prompt_stream
from .stopping import Stop
from .update import minibatches_of_step

NO_UPDATES = (
    "no optimizer step was made: dynamic sampling dropped every group, since all of its rewards were equal. The final "
    "model is the initial model. Use an initial model that solves some of the problems, or more prompts."
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


class Steps:
    """The steps of one run: a trainer calls `begin`, makes the updates, and calls `end`; after the last, `finish`.

    Under a process group all ranks call these together.
    """

    def __init__(
        self,
        policy: ScoredPolicy,
        method: Method,
        collector: Collector,
        validation: list[Problem],
        run: RunFolder,
        stop: Stop | None = None,
    ) -> None:
        self.policy, self.method, self.collector, self.run, self.stop = policy, method, collector, run, stop
        self.settings, self.validation = collector.settings, validation
        self.state = State(compute=compute_name(policy.model))
        no_updates_yet()

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Go on from the state in a checkpoint."""
        self.state = State(**{**saved, "waiting": [batch.to(device()) for batch in saved["waiting"]]})

    def start(self) -> None:
        """Open the records at ``state.step``, the first step that is made."""
        settings, state, path = self.settings, self.state, self.run.path
        compute = compute_name(self.policy.model)
        if state.compute not in (None, compute):  # `auto` depends on the machine
            raise UserError(
                f"{path}: the run was started with passes in {state.compute}, and here they would be in {compute} "
                "(training.compute: auto depends on the machine). Resume it on a machine like the first, "
                f"or remove its folder and set training.compute to {state.compute}."
            )
        self.log = MetricsLog(self.run, resume_at=state.step)
        if state.step == 0 and settings.updates_of_batch == 1 and not settings.off_policy_steps and is_rank_0():
            print(f"{path}: {ON_POLICY}", file=sys.stderr)
        name, left = f"{path.parent.name} {path.name}", range(state.step, settings.steps)
        self._progress = Progress(left, name, settings.steps, state.step, silent=not is_rank_0())
        self._steps = iter(self._progress)

    def begin(self) -> RolloutBatch:
        """Validate every `training.validate_every` steps, and sample; returns the batch that this step trains on."""
        next(self._steps)
        step = self.state.step
        self.clock, self._started = Clock(), time.perf_counter()
        # Random choices in an objective (such as Clip-Cov) are keyed by the step.
        torch.manual_seed(seed_of("step", self.collector.seed, step))
        # Validation comes before the updates; the final model is validated after the last step.
        self._held_out = self._validate(self.clock) if step % self.settings.validate_every == 0 else {}
        self.sample()
        self.current = self.state.waiting.pop(0)
        return self.current

    def sample(self) -> None:
        """Sample batches until one waits for this step and for each of the next `training.off_policy_steps` steps.

        A batch has graded groups of responses, and log-probabilities under the policy that sampled it, which is the
        old policy of its ratios.
        """
        state, settings = self.state, self.settings
        ages = range(len(state.waiting), min(settings.off_policy_steps + 1, settings.steps - state.step))
        if not ages:
            return
        batches = collect_batches(self.collector, self.policy, self.method, self.clock, state.position, ages)
        state.position += sum(batch.rollouts.sampled for batch in batches)
        state.waiting += batches

    def minibatches(self) -> Iterator[TrainingBatch]:
        """The minibatch of each optimizer step of this step; none if dynamic sampling has dropped all groups."""
        rollouts, batch, _ = self.current
        if batch is None:
            return
        prompts, group = len(rollouts.prompts), self.settings.group
        for rows in minibatches_of_step(self.settings, prompts, group, self.collector.seed, self.state.step):
            yield batch.rows(rows)

    def end(self, updates: list[dict[str, float]]) -> str | None:
        """Write the records of this step, with the metrics of its ``updates``; returns the reason to stop, if any."""
        settings, state, (rollouts, _, metrics) = self.settings, self.state, self.current
        step = state.step
        if updates:
            updates_are_made()
        seconds = time.perf_counter() - self._started
        state.totals["tokens"] += rollouts.tokens
        state.totals["samples"] += rollouts.sampled * settings.group
        state.totals["seconds"] += seconds
        if settings.off_policy_steps:
            metrics["staleness"] = float(min(step, settings.off_policy_steps))  # steps since the batch was sampled
        row = {"step": step, "sampled_accuracy": rollouts.sampled_accuracy, **metrics, **_over_updates(updates)}
        self.log.metrics(row | self._held_out | state.counts)
        used = {**self.clock.report(rollouts.tokens), **gpu_use(), "total_seconds": state.totals["seconds"]}
        self.log.timings({"step": step, **used})
        self._progress.note = f"accuracy {rollouts.sampled_accuracy:.2f}"
        state.step += 1
        reason = None if self.stop is None else self.stop.after_step(seconds)
        return next(filter(None, gather([reason])), None)  # if any rank has to stop, all do so after the same step

    def finish(self) -> FinalMetrics:
        """Validate and save the final model."""
        settings, state = self.settings, self.state
        next(self._steps, None)
        if not state.totals["updates"] and is_rank_0():
            print(f"{self.run.path}: {NO_UPDATES}", file=sys.stderr)
        final = self._validate(Clock())
        self.log.metrics({"step": settings.steps, **final, **state.counts})
        self.log.flush()
        _save_final_model(self.policy, self.run)
        return FinalMetrics(**final, steps=settings.steps, **state.totals)

    def _validate(self, clock: Clock) -> dict[str, float]:
        """Accuracy and mean length of one response per problem, with the same seeds in every call."""
        with clock("validate"):
            problems = self.validation
            responses, outcomes = self.collector.answers(problems, range(len(problems)), self.policy.model)
        return {
            "validation_accuracy": sum(o == "correct" for o in outcomes) / len(outcomes),
            "validation_length": sum(len(r.ids) for r in responses) / len(responses),
        }


@contextmanager
def open_collector(
    study: Study, arm: Arm, seed: int, policy: ScoredPolicy, start: str, data: DataFolder
) -> Iterator[tuple[Collector, list[Problem]]]:
    """Context with the sampler and grader of a run's batches, and its validation problems."""
    settings = arm.training(study)
    problems, validation = read_problems(data.train), read_problems(data.validation)
    with_tests = any(problem.options.tests for problem in [*problems, *validation])
    with open_grader(study.grader, study.extraction, with_tests) as grader:
        longest = policy.model.config.get_text_config().max_position_embeddings - settings.max_tokens
        renderer = PromptRenderer(policy.tokenizer, study.prompt, longest)
        engine = open_engine(
            settings.engine,
            start,
            policy.model,
            policy.tokenizer,
            revision=pinned(study.model).revision,
            kv_gib=settings.kv_gib,
            colocated=True,
            tokens=tokens_at_once(problems, renderer, settings),
        )
        stream, method = prompt_stream(problems, seed), arm.method(study)
        # With dynamic sampling the groups with log-probabilities could all be dropped.
        every = reads_engine(method, settings) or method.sampler.dynamic
        yield Collector(stream, engine, grader, renderer, method.sampler, settings, seed, every), validation


def tokens_at_once(problems: list[Problem], renderer: PromptRenderer, settings: Training) -> int:
    """Tokens of a step's prompts and responses, if all were as long as the longest; prompts by some of the problems."""
    prompts = [len(renderer.ids(p.problem, bool(p.options.tests))) for p in problems[:256]]
    sequences = min(settings.prompts_per_step * settings.group * (settings.off_policy_steps + 1), MAX_SEQUENCES)
    return sequences * (2 * max(prompts) + settings.max_tokens)


def _save_final_model(policy: ScoredPolicy, run: RunFolder) -> None:
    """Write the model and its tokenizer, in the precision of its passes: the policy that the engine samples.

    The optimizer's weights contain updates that are too small for this precision and had no effect on matrix products,
    so a model saved in float32 would differ from the sampled policy.
    """
    dtype = compute_dtype(policy.model)
    model: Any = merged(policy.model, torch.device("cpu"), keep=is_rank_0(), dtype=dtype)

    def save() -> None:
        with model_folder(run.model, again="it resumes from the last checkpoint") as folder:
            for part in (model, policy.tokenizer):
                part.save_pretrained(folder)

    on_rank_0(save)


@contextmanager
def failed_batch_saved(batch: TrainingBatch, run: RunFolder) -> Iterator[None]:
    """Save the batch if its update raises a UserError, for inspection."""
    try:
        yield
    except UserError as error:
        content = {"ids": batch.sequences.ids, "mask": batch.sequences.mask, "advantages": batch.tokens.advantages}
        torch.save(content, run.failed_batch)
        raise UserError(
            f"{run.path}: {error} The batch is saved in {run.failed_batch}; a lower learning rate or a clip may help."
        ) from error


def _over_updates(updates: list[dict[str, float]]) -> dict[str, float]:
    """The metrics of a step from those of its updates: means, and maxima for names that end with `_max`."""
    if not updates:
        return {}
    columns = {name: [u[name] for u in updates] for name in updates[0]}
    return {name: max(v) if name.endswith("_max") else sum(v) / len(v) for name, v in columns.items()}


def gpu_use() -> dict[str, float]:
    """Largest memory in use so far and current utilisation of the GPU, under MLflow's names; empty without a GPU.

    The utilisation needs the package nvidia-ml-py, and a driver that knows it; without them it is left out.
    """
    if not torch.cuda.is_available():
        return {}
    number = torch.cuda.current_device()
    use = {f"system/gpu_{number}_memory_usage_megabytes": torch.cuda.max_memory_allocated() / 2**20}
    with suppress(Exception):  # errors of pynvml, such as "not supported" on a MIG device
        use[f"system/gpu_{number}_utilization_percentage"] = float(torch.cuda.utilization())
    return use
