"""Options of the measurements of initial models, which are those of the command line; imports no torch."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from policygrain.errors import UserError, did_you_mean
from policygrain.objective import comparison_names, method_names

if TYPE_CHECKING:
    from policygrain.study import Study

O = TypeVar("O", bound="Options")  # noqa: E741


def option(help: str, default: Any = MISSING, least: int = 1) -> Any:
    """A field that is an option; ``least``: bound of its numbers."""
    return field(default=default, metadata={"help": help, "least": least})


@dataclass(frozen=True, kw_only=True)
class Options:
    """What both measurements need."""

    methods: tuple[str, ...] = option("presets or methods of the study; their samplers are not used")
    reference: str = option("the method that trains the policy, one of --methods; differences are to it")
    steps: tuple[int, ...] = option("training steps before rollouts are sampled: stages that are measured", (4,), 0)
    prompts_per_update: int = option("prompts of a batch, of one optimizer step", 3)

    @classmethod
    def add_to(cls, parser: ArgumentParser) -> None:
        """Add the options to a command."""
        for one in fields(cls):
            several, kind = "tuple" in str(one.type), int if "int" in str(one.type) else str
            given: dict[str, Any] = {"type": kind, "nargs": "+"} if several else {"type": kind}
            text = one.metadata["help"]
            if one.default is MISSING:
                given |= {"required": True}
            else:
                shown = one.default if several else [one.default]
                given |= {"default": one.default}
                text = f"{text} (default: {' '.join(map(str, shown))})"
            parser.add_argument(f"--{one.name.replace('_', '-')}", help=text, metavar=kind.__name__.upper(), **given)

    @classmethod
    def of(cls: type[O], arguments: Namespace) -> O:
        """The options in the arguments of a command."""
        given: dict[str, Any] = {one.name: getattr(arguments, one.name) for one in fields(cls)}
        for key, value in given.items():
            given[key] = tuple(value) if isinstance(value, list) else value
        return cls(**given)

    def prompts(self) -> dict[str, int]:
        """Option → prompts that it needs, of one policy."""
        raise NotImplementedError

    def check(self, study: Study) -> None:
        """UserError for options with which nothing can be measured on the study's initial models."""
        known = [*study.methods, *method_names(), *comparison_names()]
        for one in fields(self):
            value, name = getattr(self, one.name), f"--{one.name.replace('_', '-')}"
            values = value if isinstance(value, tuple) else (value,)
            if twice := next((v for i, v in enumerate(values) if v in values[:i]), None):
                raise UserError(f"{name}: {twice} occurs twice.")
            if low := [v for v in values if isinstance(v, int) and v < one.metadata["least"]]:
                raise UserError(f"{name} {low[0]}: expected at least {one.metadata['least']}.")
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

    updates: tuple[int, ...] = option("distances: optimizer steps between the policy that sampled and that which is "
                                      "updated", (4, 16), 0)  # fmt: skip
    # The jackknife leaves out one batch and estimates the squared mean of the others, which needs two.
    batches: int = option("ordinary batches, the same for all estimators", 100, 3)
    true_prompts: int = option("prompts whose fresh responses, at each distance, give the true gradient", 400, 3)

    def prompts(self) -> dict[str, int]:
        """Option → prompts that it needs, of one policy."""
        of_updates, of_batches = (n * self.prompts_per_update for n in (max(self.updates), self.batches))
        return {"--updates": of_updates, "--batches": of_batches, "--true-prompts": self.true_prompts}


@dataclass(frozen=True, kw_only=True)
class Rounds(Options):
    """From a policy that the reference trained for some steps, and a pool of its rollouts, each method makes updates.

    All make the same updates with the same optimizer state; after some of them the policy is validated.
    """

    updates: tuple[int, ...] = option("updates after which the policy is validated; the largest ends the round",
                                      (1, 2, 4, 8, 16))  # fmt: skip
    pools: int = option("pools of rollouts per policy", 2)
    samples: int = option("responses per validation problem at the end of a round; before it one", 1)

    def prompts(self) -> dict[str, int]:
        """Option → prompts that it needs, of one policy."""
        return {"--updates": max(self.updates) * self.prompts_per_update}
