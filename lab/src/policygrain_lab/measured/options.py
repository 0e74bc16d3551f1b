"""Options of the measurements of initial models, which are those of the command line; imports no torch."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING

from policygrain.errors import UserError, did_you_mean
from policygrain.objective import comparison_names, method_names
from policygrain.objective.part import setting

if TYPE_CHECKING:
    from policygrain.study import Study


@dataclass(frozen=True, kw_only=True)
class Options:
    """What both measurements need."""

    methods: list[str] = setting(MISSING, "presets or methods of the study; their samplers are not used")
    reference: str = setting(MISSING, "the method that trains the policy, one of --methods; differences are to it")
    steps: list[int] = setting((4,), "training steps before rollouts are sampled: stages that are measured", ge=0)
    prompts_per_update: int = setting(3, "prompts of a batch, of one optimizer step", ge=1)

    def prompts(self) -> dict[str, int]:
        """Option → prompts that it needs, of one policy."""
        raise NotImplementedError

    def check(self, study: Study) -> None:
        """UserError for options with which nothing can be measured on the study's initial models."""
        known = [*study.methods, *method_names(), *comparison_names()]
        for one in fields(self):
            value, name = getattr(self, one.name), f"--{one.name.replace('_', '-')}"
            values = value if isinstance(value, list | tuple) else (value,)
            if (twice := next((v for i, v in enumerate(values) if v in values[:i]), None)) is not None:
                raise UserError(f"{name}: {twice} occurs twice.")
            if low := [v for v in values if isinstance(v, int) and v < one.metadata["ge"]]:
                raise UserError(f"{name} {low[0]}: expected at least {one.metadata['ge']}.")
        for name in self.methods:
            if name not in known:
                raise UserError(f"--methods: no method is called {name!r}.{did_you_mean(name, known)}")
            chosen = study.method(name)
            chosen.check()
            if "staleness" in chosen.needs:
                raise UserError(
                    f"--methods: {name!r} needs the age of rollouts (anchor: loglinear), which is not varied here; "
                    "leave it out, or measure it in a run with training.off_policy_steps."
                )
            if chosen.n_mtp_heads:
                raise UserError(
                    f"--methods: {name!r} needs prediction heads, which are not trained here; leave it out, or "
                    "measure its variant with `ratio: {future: backbone}`."
                )
        if self.reference not in self.methods:
            raise UserError(
                f"--reference: {self.reference!r} is not one of --methods. Add it there."
                f"{did_you_mean(self.reference, self.methods)}"
            )
        if max(self.steps) > study.training.steps:
            raise UserError(f"--steps: {max(self.steps)} is more than training.steps ({study.training.steps}).")

    def check_prompts(self, available: int) -> None:
        """UserError if the rollouts of one policy need more prompts than the ``available`` training problems.

        With fewer problems, prompts would repeat and batches would not be independent.
        """
        for key, count in self.prompts().items():
            if count > available:
                raise UserError(
                    f"{key}: needs {count} prompts, but there are {available} training problems (--prompts-per-update "
                    f"is {self.prompts_per_update}). Choose fewer, or a study with a larger data.train_size."
                )


@dataclass(frozen=True, kw_only=True)
class Estimators(Options):
    """A policy is trained for some steps by the reference; from its rollouts, all estimators compute their updates.

    They do so at some distances (optimizer steps by the reference), and are compared with the true gradient there.
    """

    updates: list[int] = setting(
        (4, 16), "distances: optimizer steps between the policy that sampled and that which is updated", ge=0
    )
    # The jackknife leaves out one batch and estimates the squared mean of the others, which needs two.
    batches: int = setting(100, "ordinary batches, the same for all estimators", ge=3)
    true_prompts: int = setting(400, "prompts whose fresh responses, at each distance, give the true gradient", ge=3)

    def prompts(self) -> dict[str, int]:
        """Option → prompts that it needs, of one policy."""
        of_updates, of_batches = (n * self.prompts_per_update for n in (max(self.updates), self.batches))
        return {"--updates": of_updates, "--batches": of_batches, "--true-prompts": self.true_prompts}


@dataclass(frozen=True, kw_only=True)
class Rounds(Options):
    """From a policy that the reference trained for some steps, and a pool of its rollouts, each method makes updates.

    All make the same updates with the same optimizer state; after some of them the policy is validated.
    """

    updates: list[int] = setting(
        (1, 2, 4, 8, 16), "updates after which the policy is validated; the largest ends the round", ge=1
    )
    pools: int = setting(2, "pools of rollouts per policy", ge=1)
    samples: int = setting(1, "responses per validation problem at the end of a round; before it one", ge=1)

    def prompts(self) -> dict[str, int]:
        """Option → prompts that it needs, of one policy."""
        return {"--updates": max(self.updates) * self.prompts_per_update}
