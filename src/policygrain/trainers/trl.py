"""TRL as the trainer of a run, paired with one of the loop, whose rollouts, objective and records it has (`Run`).

TRL, Accelerate and DeepSpeed optimise, save and distribute the model over processes (`training.trl`).
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, Trainer, TrainerCallback

from ..clock import Clock
from ..errors import Stopped, UserError
from ..hub import pinned
from ..model.attention import to_device
from ..model.device import compute_name, device, gpu_errors
from ..model.engine import Rollout
from ..model.loading import has_adapter, load_adapter
from ..model.scoring import TokenScores
from ..objective.loss import merge_metrics
from ..paths import DataFolder, RunFolder
from ..records import FinalMetrics
from ..study.runs import Arm
from ..study.schema import Study, Training
from ..train.batch import width_of
from ..train.checkpoint import STATE, completed, flush_logs, load_newest, make_room
from ..train.loop import Run, open_collector
from ..train.policy import Policy, check_step, make_optimizer, on_device, open_models, step_context
from ..train.ranks import gather, on_rank_0, ranks, sum_over_ranks
from ..train.stopping import Stop
from .check import TRL

# TRL would import vLLM, which takes long and which no run by TRL uses: the study's engine samples.
import_module("trl.import_utils").is_vllm_available = lambda *_, **__: False  # type: ignore[attr-defined]
from trl import GRPOConfig, GRPOTrainer  # noqa: E402


def train(
    study: Study, arm: Arm, seed: int, *, start: str, data: DataFolder, run: RunFolder, stop: Stop | None = None
) -> FinalMetrics:
    """As `train.loop.train`, with any number of processes, which call this with the same arguments."""
    method, settings, spec = arm.method, arm.training, pinned(study.model)
    torch.set_num_threads(settings.threads)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    sharded = bool(settings.trl.get("fsdp"))  # each process holds only a part of the weights
    with gpu_errors(settings):
        policy = TrlPolicy(*open_models(start, spec, settings, seed, sharded=sharded))
    with gpu_errors(settings), open_collector(study, arm, seed, policy, start, data) as (collector, validation):
        steps = Run(policy, method, collector, validation, run, stop)
        resumed, saved = on_rank_0(lambda: load_newest(run.checkpoints))
        compute = compute_name(policy.model)
        config = grpo_config(
            settings,
            output_dir=str(on_rank_0(lambda: make_room(run.checkpoints))),
            use_cpu=device().type != "cuda",
            bf16=compute == "bfloat16" and compute != spec.dtype,  # autocast
            # Any number but 0 makes TRL load the initial model, and shard it; the penalty itself is the objective's.
            beta=1.0 if sharded and "reference" in method.needs and spec.lora is None else 0.0,
        )
        with warnings.catch_warnings(), steps.started(saved) as state:
            warnings.simplefilter("ignore")
            trainer = StudyTrainer(steps, model=policy.model, processing_class=policy.tokenizer, args=config)
            policy.trainer = trainer
            trainer.train(resume_from_checkpoint=None if resumed is None else str(resumed))
        if (reason := trainer.stopped_by) is not None:
            raise Stopped(f"{run.path}: stopped by {reason} after step {state.step} of {settings.steps}, and saved.")
        final = steps.finish()
        on_rank_0(lambda: shutil.rmtree(config.output_dir, ignore_errors=True))
        return final


@dataclass
class TrlPolicy(Policy):
    """The policy that TRL trains; every process computes a share of the scores."""

    trainer: Any = None  # the StudyTrainer, which is made after it

    def score(self, rollouts: Sequence[Rollout], settings: Training) -> TokenScores:
        return self.trainer.score(self.trainer.model, rollouts)

    def score_reference(self, rollouts: Sequence[Rollout], settings: Training) -> TokenScores | None:
        """As in `Policy`; None for a sharded model whose method does not need it."""
        if self.trainer.ref_model is not None:
            return self.trainer.score(self.trainer.ref_model, rollouts)
        if self.reference is not None:
            return super().score_reference(rollouts, settings)
        if not has_adapter(self.model):
            return None
        with on_device(None, self.model):
            return self.score(rollouts, settings)


class SkippableAdamW(torch.optim.AdamW):
    """AdamW that can skip steps: after dynamic sampling there may be fewer minibatches than steps, or none."""

    skips = False

    def step(self, closure: Any = None) -> Any:
        """As in AdamW, or nothing if ``skips`` is set."""
        return None if self.skips else super().step(closure)


class StudyTrainer(GRPOTrainer, TrainerCallback):
    """TRL's trainer with the batches, the objective, the optimizer and the records of a study; its own callback."""

    optimizer: Any
    adamw: SkippableAdamW

    def __init__(self, steps: Run, **kwargs: Any) -> None:
        self.study, self.study_settings = steps, steps.settings
        self.stopped_by: str | None = None
        self._updates: list[dict[str, float]] = []  # metrics of the optimizer steps of this training step so far
        # TRL counts the batches of a data set, whose content is not used: one pass over it is one training step.
        dataset = Dataset.from_list([{"prompt": ""}] * (ranks()[1] * steps.settings.updates_of_batch))
        super().__init__(
            reward_funcs=lambda completions, **_: [0.0] * len(completions),  # required; the study's grader grades
            train_dataset=dataset,
            callbacks=[self],
            **kwargs,
        )
        self.remove_callback(PrinterCallback)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """The passes of the next optimizer step; a training step begins with a new batch."""
        model.train()
        if self.state.global_step % self.study_settings.updates_of_batch == 0:
            self.study.policy.model = self.accelerator.unwrap_model(self.model)
            self.clock, validates = Clock(), self.study.state.step % self.study_settings.validate_every == 0
            self._held_out = self.study.validate(self.clock) if validates else {}
            sampled, self._sampled = self.study.next_batch(self.clock)
            self._started = time.perf_counter()
            self._minibatches = self.study.minibatches(sampled)
        self._parts: list[dict[str, float]] = []  # metrics of the micro-batches of this optimizer step so far
        self._minibatch = batch = next(self._minibatches, None)  # None: the step is skipped
        passes = (torch.tensor([]),) if batch is None else self._passes(batch.rollouts)
        if batch is not None:
            self._step_context = step_context(self.study.policy, batch, self.study.method, self.study_settings)
        for number, rows in enumerate(passes, 1):
            is_last = number == len(passes)  # only its gradients are exchanged between processes
            self.accelerator.gradient_state._set_sync_gradients(is_last)
            with contextlib.nullcontext() if is_last else self.accelerator.no_sync(model):
                with self.compute_loss_context_manager():
                    loss = self._loss(model, rows)
                self.accelerator.backward(loss)
        return loss.detach()

    def _passes(self, rollouts: Sequence[Rollout]) -> tuple[Tensor, ...]:
        """The rows that this process computes in each pass, by length; every process has as many passes."""
        (number, count), settings = ranks(), self.study_settings
        order = torch.tensor([len(rollout.ids) for rollout in rollouts]).argsort(stable=True)
        in_a_pass = max(1, settings.micro_batch_tokens // settings.max_tokens)
        return order[number::count].tensor_split(math.ceil(len(order) / count / in_a_pass))

    def _loss(self, model: Any, rows: Tensor) -> Tensor:
        """The objective on rows of the minibatch, normalised by the whole optimizer step. Scalar with gradient."""
        if self._minibatch is None or not len(rows):
            # A process without responses takes part in the forward passes of sharded models, with a loss of 0.
            tokenizer = self.study.policy.tokenizer
            nothing = Rollout([tokenizer.eos_token_id], [tokenizer.eos_token_id], True, [])
            return self._scores(model, [nothing]).log_probs.sum() * 0.0
        part, method = self._minibatch.rows(rows), self.study.method
        scores = self._scores(model, part.rollouts, "entropy_gradient" in method.needs)
        out = method.loss(part.under(scores, self._step_context))
        self._parts.append(out.metrics)
        return out.loss * ranks()[1]  # gradients are averaged over processes and must be summed

    def _scores(self, model: Any, rollouts: Sequence[Rollout], entropy_gradient: bool = False) -> TokenScores:
        pad = self.study.policy.tokenizer.pad_token_id
        prompts, prompt_mask = padded([rollout.prompt for rollout in rollouts], pad, "left")
        ids, mask = padded([rollout.ids for rollout in rollouts], pad, "right")
        log_probs, entropy, _ = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([prompts, ids], dim=1),
            torch.cat([prompt_mask, mask], dim=1).long(),
            ids.shape[1],
            compute_entropy=model is not self.ref_model,
        )
        entropy = torch.zeros_like(log_probs) if entropy is None else entropy
        log_probs, entropy = (torch.where(mask, x, 0.0) for x in (log_probs, entropy))
        return TokenScores(log_probs, entropy if entropy_gradient else entropy.detach(), None, None)

    def score(self, model: Any, rollouts: Sequence[Rollout]) -> TokenScores:
        """Scores of all responses under ``model``, without gradient; each process computes a share of them."""
        whole = [torch.zeros((len(rollouts), width_of(rollouts)), device=device()) for _ in range(2)]
        with torch.no_grad():
            for rows in self._passes(rollouts):
                scores = self._scores(model, [rollouts[row] for row in rows.tolist() or [0]])
                if len(rows):
                    for values, computed in zip(whole, scores[:2], strict=True):
                        values[rows, : computed.shape[1]] = computed.float()
        sum_over_ranks(whole)
        return TokenScores(whole[0], whole[1], None, None)

    def create_optimizer(self, model: Any = None) -> Any:
        if self.optimizer is None:
            trained = self.model if model is None else model
            self.optimizer = make_optimizer(trained, None, self.study.method, self.study_settings, SkippableAdamW)
            self.adamw = self.optimizer  # TRL wraps `self.optimizer` later
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        totals, warmup = self.study.state.totals, max(1, self.study_settings.warmup_updates)
        scheduled = self.optimizer if optimizer is None else optimizer
        self.lr_scheduler = LambdaLR(scheduled, lambda _: min(1.0, (totals["updates"] + 1) / warmup))
        return self.lr_scheduler

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> float | None:
        """Check and count the optimizer step that is about to be made, or skip it if there is no minibatch."""
        norm, batch = super()._get_grad_norm(model, grad_norm=grad_norm), self._minibatch
        self.adamw.skips = batch is None
        if batch is not None:
            metrics = merge_metrics(gather(self._parts))
            metrics["gradient_norm"] = math.nan if norm is None else float(norm)
            metrics["learning_rate"] = self.optimizer.param_groups[0]["lr"]
            with self.study.errors_named():
                check_step(metrics)
            self._updates.append(metrics)
            self.study.state.totals["updates"] += 1
        return norm

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After the last optimizer step of a training step: write its records, save or stop where it is due."""
        settings = self.study_settings
        if self.state.global_step % settings.updates_of_batch:
            return
        self.clock.seconds["update"] = time.perf_counter() - self._started
        self.stopped_by = self.study.log_step(self.clock, self._sampled, self._updates, self._held_out)
        self._updates = []
        self._metrics["train"].clear()  # TRL's own metrics, which are not used
        step = self.study.state.step
        due = step % settings.checkpoint_every == 0 and step < settings.steps
        control.should_save = due or self.stopped_by is not None
        control.should_training_stop = control.should_training_stop or self.stopped_by is not None

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write TRL's checkpoint with the run's state and checksums, named as the checkpoints of all trainers."""
        flush_logs(self.study.folder)
        checkpoints, step = self.study.folder.checkpoints, self.study.state.step
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        with completed(folder, checkpoints, step):
            Trainer._save_checkpoint(self, model, trial)  # GRPOTrainer's also writes a model card
            self.accelerator.wait_for_everyone()
            on_rank_0(lambda: torch.save(vars(self.study.state), folder / STATE))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load as transformers does; this package loads its own adapters, which transformers does not know."""
        if has_adapter(self.model) and not self.is_fsdp_enabled:
            load_adapter(self.model, Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)


def padded(rows: Sequence[list[int]], pad: int, side: str) -> tuple[Tensor, Tensor]:
    """Token ids [rows, tokens], padded on this side, and their mask, on the compute device."""
    (ids,) = to_device([pad_sequence([torch.tensor(row) for row in rows], True, -1, side)], device())
    return ids.where(ids >= 0, pad), ids >= 0


def grpo_config(settings: Training, **of_run: Any) -> GRPOConfig:
    """TRL's configuration of a run. UserError if TRL refuses the settings of `training.trl`."""
    of_study = {theirs: getattr(settings, ours) for theirs, ours in TRL["of_study"].items()} | {
        "adam_beta1": settings.betas[0],
        "adam_beta2": settings.betas[1],
        "steps_per_generation": settings.updates_of_batch,
        "max_steps": settings.steps * settings.updates_of_batch,
    }
    try:
        return GRPOConfig(**TRL["always"] | of_study | of_run | settings.trl)
    except (ValueError, TypeError, ImportError, OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"training.trainer: TRL refuses the settings of this run: {reason}") from error
