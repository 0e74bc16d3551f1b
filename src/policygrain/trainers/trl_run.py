"""TRL as the trainer of a run: responses are sampled as in the loop; TRL optimises, shards and saves the model.

The rollouts, the objective and the records are those of the loop in `train/` (`Steps`), so a run by TRL is paired with
one of the loop; they differ by rounding. TRL, Accelerate and DeepSpeed decide how the model is distributed over
processes (`training.trl`).
"""

from __future__ import annotations

import os
import shutil
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..errors import Stopped
from ..hub import pinned
from ..model.device import device, device_errors
from ..model.logprobs import TokenScores
from ..model.precision import compute_name
from ..model.sequences import Sequences
from ..model.weights import has_adapter
from ..train.checkpoint import load_state, make_room, newest_complete
from ..train.policy import ScoredPolicy, on_device, open_models
from ..train.ranks import on_rank_0, ranks
from ..train.steps import Steps, open_collector
from .trl_settings import grpo_config, is_sharded
from .trl_trainer import StudyTrainer

if TYPE_CHECKING:
    from ..paths import DataFolder, RunFolder
    from ..records import FinalMetrics
    from ..study import Study
    from ..study.runs import Arm
    from ..study.schema import Training
    from ..train.stopping import Stop


def train(
    study: Study, arm: Arm, seed: int, *, start: str, data: DataFolder, run: RunFolder, stop: Stop | None = None
) -> FinalMetrics:
    """Train the model in ``start`` as an arm of a study, from the newest checkpoint in ``run`` if there is one.

    As `train.loop.train`, with any number of processes, which call this with the same arguments.
    """
    method, settings, spec = arm.method(study), arm.training(study), pinned(study.model)
    torch.set_num_threads(settings.threads)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    sharded = is_sharded(settings)
    with device_errors(settings):
        host = torch.device("cpu") if sharded else None  # FSDP moves each process's shards to its GPU
        parts = open_models(start, spec, settings, seed, place=host, with_reference=not sharded)
        policy = TrlPolicy(*parts)
    with device_errors(settings), open_collector(study, arm, seed, policy, start, data) as (collector, validation):
        steps = Steps(policy, method, collector, validation, run, stop)
        resumed = on_rank_0(lambda: newest_complete(run.checkpoints))
        if resumed is not None:
            steps.resume(load_state(resumed))
        steps.start()
        compute = compute_name(policy.model)
        config = grpo_config(
            settings,
            on_rank_0(lambda: make_room(run.checkpoints)),
            ranks()[1],
            half=None if compute == spec.dtype else compute,
            loads_reference=sharded and "reference" in method.needs and spec.lora is None,
            gpu=device().type == "cuda",
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = StudyTrainer(steps, model=policy.model, processing_class=policy.tokenizer, args=config)
            policy.trainer = trainer
            trainer.train(resume_from_checkpoint=None if resumed is None else str(resumed))
        if trainer.stopped_by is not None:
            done = f"after step {steps.state.step} of {settings.steps}, and saved"
            raise Stopped(f"{run.path}: stopped by {trainer.stopped_by} {done}.")
        final = steps.finish()
        on_rank_0(lambda: shutil.rmtree(config.output_dir, ignore_errors=True))
        return final


@dataclass
class TrlPolicy(ScoredPolicy):
    """The policy that TRL trains; every process computes a share of the scores."""

    trainer: StudyTrainer | None = None

    def score(self, sequences: Sequences, settings: Training) -> TokenScores:
        """Log-probabilities and entropies of all responses under the policy, without gradient."""
        assert self.trainer is not None
        return self.trainer.score(self.trainer.model, sequences)

    def score_reference(self, sequences: Sequences, settings: Training) -> TokenScores | None:
        """The same under the reference policy; None for a sharded model whose method does not need it."""
        assert self.trainer is not None
        if self.trainer.ref_model is not None:
            return self.trainer.score(self.trainer.ref_model, sequences)
        if self.reference is not None:
            return super().score_reference(sequences, settings)
        if not has_adapter(self.model):
            return None
        with on_device(None, self.model):
            return self.trainer.score(self.trainer.model, sequences)
