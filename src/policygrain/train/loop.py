"""The training loop: one process, every step in the order in which it happens."""

from __future__ import annotations

import torch

from ..errors import Stopped, UserError
from ..hub import pinned
from ..model.device import device_errors
from ..paths import DataFolder, RunFolder
from ..records import FinalMetrics
from ..study.runs import Arm
from ..study.schema import Study
from . import checkpoint
from .head_warm_up import warm_up
from .policy import Policy, open_policy
from .rollout_batch import EngineMismatch
from .steps import Steps, failed_batch_saved, open_collector
from .stopping import Stop
from .update import update


def train(
    study: Study, arm: Arm, seed: int, *, start: str, data: DataFolder, run: RunFolder, stop: Stop | None = None
) -> FinalMetrics:
    """Train the model in ``start`` as an arm of a study, from the newest checkpoint in ``run`` if there is one.

    Random states are keyed by ``seed`` and the step, so a resumed run equals an uninterrupted run bit for bit. ``stop``
    is checked after each step; to stop, the run is saved and `Stopped` is raised. The caller holds the lock of the run
    directory.
    """
    method, settings, spec = arm.method(study), arm.training(study), pinned(study.model)
    torch.set_num_threads(settings.threads)
    with device_errors(settings):
        policy = open_policy(start, spec, method, settings, seed)
        with open_collector(study, arm, seed, policy, start, data) as (collector, validation):
            trainer = Trainer(policy, method, collector, validation, run, stop)
            with checkpoint.Writer(run.checkpoints) as trainer.checkpoints:
                return trainer.train()


class Trainer(Steps):
    """The training loop of one run, with the state that its checkpoints save."""

    policy: Policy
    checkpoints: checkpoint.Writer

    def train(self) -> FinalMetrics:
        """Train from the newest checkpoint, if there is one, to the last step, and save the final model."""
        policy, settings = self.policy, self.settings
        if (saved := checkpoint.load_newest(self.run.checkpoints, policy.parts)) is not None:
            self.resume(saved)
        self.start()
        if policy.heads is not None and saved is None:
            warm_up(policy, self.method, self.collector, self.run)
        while self.state.step < settings.steps:
            self.begin()
            updates = []
            with self.clock("update"):
                for batch in self.minibatches():  # each further off-policy than the previous one
                    self.state.totals["updates"] += 1
                    policy.warm_up_rate(self.state.totals["updates"] / max(1, settings.warmup_updates))
                    with failed_batch_saved(batch, self.run):
                        updates.append(update(policy, batch, self.method, settings))
            reason, step = self.end(updates), self.state.step
            if reason or (step % settings.checkpoint_every == 0 and step < settings.steps):
                self._save()
            if reason:
                self.checkpoints.wait()
                raise Stopped(f"{self.run.path}: stopped by {reason} after step {step} of {settings.steps}, and saved.")
        return self.finish()

    def sample(self) -> None:
        """As in `Steps`; if engine and trainer disagree, the run is saved before the error is raised."""
        try:
            super().sample()
        except EngineMismatch as error:
            self._save()
            self.checkpoints.wait()
            raise UserError(
                f"{self.run.path}: step {self.state.step}: {error} The run was saved in its state before this step."
            ) from error

    def _save(self) -> None:
        self.log.flush()
        state = self.state
        self.checkpoints.save(state.step, self.policy.parts, vars(state))
