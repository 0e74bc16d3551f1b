"""The training loop of this package, and the parts of a step that TRL's trainer shares with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..clock import Clock
from ..data.problem import Problem, read_problems
from ..data.prompts import PromptRenderer
from ..errors import Stopped, UserError
from ..files import model_folder
from ..grading import open_grader
from ..hub import pinned
from ..model.device import compute_dtype, compute_name, device, gpu_errors, updates_are_made
from ..model.loading import merged
from ..model.scoring import micro_batches, score_tokens
from ..model.vllm_engine import MAX_SEQUENCES, open_engine
from ..objective import Method, Sampler
from ..paths import DataFolder, RunFolder
from ..provenance import seed_of
from ..records import FinalMetrics
from ..study.runs import Arm
from ..study.schema import Study, Training
from .batch import Batch, check_mismatch, make_batch, minibatches_of_step, reads_engine, scored_by_update
from .checkpoint import Writer, append, flush_logs, load_newest, resume_logs
from .policy import Policy, open_policy, update
from .ranks import gather, is_rank_0, on_rank_0
from .rollouts import Collector, PromptStream, prompt_stream
from .stopping import Stop

NO_UPDATES = (
    "no optimizer step was made: dynamic sampling dropped every group for its equal rewards. The final model is the "
    "initial one. Use one that solves some of the problems, or more prompts."
)


def train(
    study: Study, arm: Arm, seed: int, *, start: str, data: DataFolder, run: RunFolder, stop: Stop | None = None
) -> FinalMetrics:
    """Train the model in ``start`` as an arm of a study, from the newest checkpoint in ``run`` if there is one.

    Random states are keyed by ``seed`` and the step, so a resumed run equals an uninterrupted run bit for bit. ``stop``
    is checked after each step; to stop, the run is saved and `Stopped` is raised.
    """
    method, settings = arm.method, arm.training
    torch.set_num_threads(settings.threads)
    with gpu_errors(settings):
        policy = open_policy(start, pinned(study.model), method, settings, seed)
        with open_collector(study, arm, seed, policy, start, data) as (collector, validation):
            return train_policy(Run(policy, method, collector, validation, run, stop))


def train_policy(run: Run) -> FinalMetrics:
    """Train from the newest checkpoint, if there is one, to the last step, and save the final model."""
    policy, method, settings, folder = run.policy, run.method, run.settings, run.folder
    _, saved = load_newest(folder.checkpoints)
    if saved is not None:
        for name, part in policy.parts.items():
            part.load_state_dict(saved.pop(name))
    with run.started(saved) as state, Writer(folder.checkpoints) as checkpoints:
        if policy.heads is not None and saved is None:
            warm_up_heads(policy, method, run.collector)
        for step in range(state.step, settings.steps):
            clock = Clock()
            held_out = run.validate(clock) if step % settings.validate_every == 0 else {}
            updates = []
            with run.errors_named():
                batch, metrics = run.next_batch(clock)  # collected, graded and scored
                with clock("update"):
                    for part in run.minibatches(batch):  # each further off-policy than the previous one
                        state.totals["updates"] += 1
                        policy.warm_up_rate(state.totals["updates"] / max(1, settings.warmup_updates))
                        updates.append(update(policy, part, method, settings))
            reason = run.log_step(clock, metrics, updates, held_out)
            if reason or ((step + 1) % settings.checkpoint_every == 0 and step + 1 < settings.steps):
                flush_logs(folder)
                checkpoints.save(step + 1, policy.parts, vars(state))
            if reason:
                checkpoints.wait()
                done = f"after step {step + 1} of {settings.steps}, and saved"
                raise Stopped(f"{folder.path}: stopped by {reason} {done}.")
        return run.finish()


@dataclass
class State:
    """The state of a run besides its policy; checkpoints contain both. Random states are keyed by the step."""

    step: int = 0  # steps that are finished
    position: int = 0  # prompts drawn from the stream so far
    totals: dict[str, float] = field(default_factory=lambda: {"updates": 0, "tokens": 0, "samples": 0, "seconds": 0.0})
    waiting: list[tuple[Batch | None, dict[str, float]]] = field(default_factory=list)  # sampled, not trained on yet
    compute: str | None = None  # precision of the passes

    @property
    def counts(self) -> dict[str, float]:
        return {f"total_{name}": self.totals[name] for name in ("updates", "tokens", "samples")}


@dataclass
class Run:
    """What the steps of a run need, and its state. Under a process group all ranks call its methods together."""

    policy: Policy
    method: Method
    collector: Collector
    validation: list[Problem]
    folder: RunFolder
    stop: Stop | None = None

    def __post_init__(self) -> None:
        self.settings = self.collector.settings

    @contextmanager
    def started(self, saved: Mapping[str, Any] | None) -> Iterator[State]:
        """Context of the steps from the state in a checkpoint on, or from the first one, with records and progress."""
        settings, path, compute = self.settings, self.folder.path, compute_name(self.policy.model)
        self.state = state = State(**saved) if saved is not None else State(compute=compute)
        state.waiting = [(None if batch is None else batch.to(device()), metrics) for batch, metrics in state.waiting]
        if state.compute != compute:  # `auto` depends on the machine
            raise UserError(
                f"{path}: the run was started with passes in {state.compute}, which here would be in {compute}. "
                f"Resume it where it was started, or remove its folder and set training.compute to {state.compute}."
            )
        resume_logs(self.folder, state.step)
        name, silent = f"{path.parent.name} {path.name}", not is_rank_0()
        with tqdm(desc=name, total=settings.steps, initial=state.step, disable=silent) as self.progress:
            yield state

    @contextmanager
    def errors_named(self) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            raise UserError(f"{self.folder.path}: step {self.state.step}: {error}") from error

    def validate(self, clock: Clock) -> dict[str, float]:
        """Accuracy and mean length of one response per problem, with the same seeds in every call."""
        with clock("validate"):
            problems = self.validation
            rollouts, outcomes = self.collector.answers(problems, range(len(problems)), self.policy.model)
        return {
            "validation_accuracy": sum(o == "correct" for o in outcomes) / len(outcomes),
            "validation_length": sum(len(r.ids) for r in rollouts) / len(rollouts),
        }

    def next_batch(self, clock: Clock) -> tuple[Batch | None, dict[str, float]]:
        """The batch that this step trains on, and its metrics; None if dynamic sampling has dropped all groups.

        A batch waits for this and the next `training.off_policy_steps` steps; its old policy is the one that sampled.
        """
        state, settings, policy = self.state, self.settings, self.policy
        for age in range(len(state.waiting), min(settings.off_policy_steps + 1, settings.steps - state.step)):
            rollouts, metrics = self.collector.collect(policy.model, state.position, clock)
            state.position += int(metrics["groups_drawn"])
            batch = None
            if rollouts:
                first: list[int] = self.minibatch_rows(len(rollouts))[0].tolist()
                current = first if scored_by_update(self.method, settings) else []
                with clock("log_probs"):
                    batch, scored = make_batch(rollouts, policy, self.method, settings, age, current)
                check_mismatch(scored, policy.model, settings.max_mismatch)
                metrics |= scored
            state.waiting.append((batch, metrics))
        return state.waiting.pop(0)

    def minibatches(self, batch: Batch | None) -> Iterator[Batch]:
        # Random choices in an objective (such as Clip-Cov) are keyed by the step.
        torch.manual_seed(seed_of("step", self.collector.seed, self.state.step))
        if batch is not None:
            for rows in self.minibatch_rows(len(batch.rollouts)):
                yield batch.rows(rows)

    def minibatch_rows(self, responses: int) -> list[Tensor]:
        settings, step = self.settings, self.state.step
        return minibatches_of_step(settings, responses // settings.group, settings.group, self.collector.seed, step)

    def log_step(
        self, clock: Clock, metrics: dict[str, float], updates: list[dict[str, float]], held_out: dict[str, float]
    ) -> str | None:
        """End a step: write its records, of its batch, updates and validation; returns the reason to stop, if any."""
        settings, state, step = self.settings, self.state, self.state.step
        of_updates = {}
        if updates:
            updates_are_made()
            if share := metrics.pop("current_share", 0.0):  # of the tokens, which the first update has scored
                metrics["entropy_old"] += share * (updates[0]["entropy"] - metrics["entropy_old"])
            for name in updates[0]:
                values = [update[name] for update in updates]
                of_updates[name] = max(values) if name.endswith("_max") else sum(values) / len(values)
        seconds, tokens = clock.elapsed, metrics.pop("sampled_tokens")
        state.totals["tokens"] += tokens
        state.totals["samples"] += metrics["groups_drawn"] * settings.group
        state.totals["seconds"] += seconds
        if settings.off_policy_steps:
            metrics["staleness"] = float(min(step, settings.off_policy_steps))  # steps since the batch was sampled
        append(self.folder.metrics, {"step": step, **metrics, **of_updates, **held_out, **state.counts})
        seconds_so_far = {"total_seconds": state.totals["seconds"]}
        append(self.folder.timings, {"step": step, **clock.report(int(tokens)), **seconds_so_far})
        self.progress.set_postfix_str(f"accuracy {metrics['sampled_accuracy']:.2f}", refresh=False)
        self.progress.update()
        state.step += 1
        reason = None if self.stop is None else self.stop.after_step(seconds)
        return next(filter(None, gather([reason])), None)  # if any rank has to stop, all do so after the same step

    def finish(self) -> FinalMetrics:
        """Validate, and save the final model in the precision of its passes, as the engine samples it."""
        settings, state, policy = self.settings, self.state, self.policy
        if not state.totals["updates"] and is_rank_0():
            print(f"{self.folder.path}: {NO_UPDATES}", file=sys.stderr)
        final = self.validate(Clock())
        append(self.folder.metrics, {"step": settings.steps, **final, **state.counts})
        flush_logs(self.folder)
        model: Any = merged(policy.model, torch.device("cpu"), keep=is_rank_0(), dtype=compute_dtype(policy.model))

        def save() -> None:
            with model_folder(self.folder.model, again="it resumes from the last checkpoint") as folder:
                model.save_pretrained(folder)
                policy.tokenizer.save_pretrained(folder)

        on_rank_0(save)
        return FinalMetrics(**final, steps=settings.steps, **state.totals)


@contextmanager
def open_collector(
    study: Study, arm: Arm, seed: int, policy: Policy, start: str, data: DataFolder
) -> Iterator[tuple[Collector, list[Problem]]]:
    """Context with what samples and grades a run's rollouts, and its validation problems."""
    settings, method = arm.training, arm.method
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
        # With dynamic sampling the groups with log-probabilities could all be dropped.
        every = reads_engine(method, settings) or method.sampler.dynamic
        stream = prompt_stream(problems, seed)
        yield Collector(stream, engine, grader, renderer, method.sampler, settings, seed, every), validation


def tokens_at_once(problems: list[Problem], renderer: PromptRenderer, settings: Training) -> int:
    """Tokens of a step's prompts and responses, if all were as long as the longest; prompts by some of the problems."""
    prompts = [len(renderer.ids(p.problem, bool(p.options.tests))) for p in problems[:256]]
    sequences = min(settings.prompts_per_step * settings.group, MAX_SEQUENCES)
    return sequences * (2 * max(prompts) + settings.max_tokens)


def warm_up_heads(policy: Policy, method: Method, collector: Collector) -> list[float]:
    """Train the heads by cross-entropy, on prompts and samples apart from training's; each batch's loss per token."""
    seed, settings, heads = seed_of("heads", collector.seed), collector.settings, policy.heads
    assert heads is not None
    stream, plain = PromptStream(collector.stream.problems, seed), Sampler(dynamic=False)
    collector = replace(collector, stream=stream, sampler=plain, seed=seed)
    optimizer = torch.optim.AdamW(heads.parameters(), lr=method.mtp_heads.learning_rate, weight_decay=0.0)
    losses: list[float] = []
    for number in range(method.mtp_heads.warmup_batches):
        rollouts, _ = collector.collect(policy.model, number * settings.prompts_per_step, Clock())
        tokens = sum(len(rollout.ids) for rollout in rollouts)
        losses.append(0.0)
        optimizer.zero_grad(set_to_none=True)
        for rows in micro_batches(rollouts, settings.micro_batch_tokens):
            part = [rollouts[row] for row in rows]
            loss = score_tokens(policy.model, part, settings.temperature, heads=heads).future_loss
            assert loss is not None
            (share := loss / tokens).backward()
            losses[-1] += share.item()
        optimizer.step()
    return losses
