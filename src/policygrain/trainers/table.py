"""The features of each trainer. `policygrain check` and `policygrain train` refuse an arm whose trainer lacks one."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UserError
from ..integrations.options import NEEDS, VERL_LACKS, reads_entropies
from ..objective.advantage import TurnAdvantage
from ..study.runs import run_matrix
from .trl_settings import check_keys as check_trl_keys
from .verl_config import config, verl_version, with_changes

if TYPE_CHECKING:
    from ..objective import Method, Need
    from ..study import Study
    from ..study.runs import Arm
    from ..study.schema import Training

IsAsked = Callable[["Study", "Training", "Method"], bool]
TRAINERS = ("policygrain", "trl", "verl")
LOOP, BUT_VERL = TRAINERS[:1], TRAINERS[:2]


class Feature(NamedTuple):
    """A feature that an arm may need, and the trainers that have it."""

    text: str
    is_asked: IsAsked
    trainers: tuple[str, ...] = BUT_VERL


def _need(name: Need) -> Feature:
    trainers = LOOP if name == "mtp_heads" else BUT_VERL
    return Feature(NEEDS[name], lambda study, s, m: name in m.needs, trainers)


def _tells_turns(chosen: Method) -> bool:
    """Whether a method reads which turn of its response a token is in: runs of 1 in the response mask."""
    return (
        "turns" in chosen.needs
        or getattr(chosen.ratio, "layout", None) == "turns"
        or isinstance(chosen.advantage, TurnAdvantage)
        or "turn" in (chosen.sampler.correction_grain, chosen.sampler.rejection_grain)
    )


FEATURES = [
    Feature(
        "parts by turns (in ratio, advantage, aggregation or sampler): a response of a study is one turn, and only "
        "your own trainer can have more",
        lambda study, s, m: _tells_turns(m),
        (),
    ),
    *map(_need, VERL_LACKS),
    # verl computes these over the micro-batch, or from other inputs.
    _need("step_log_probs"),
    Feature("a mask by entropies (TEPO)", lambda study, s, m: reads_entropies(m)),
    Feature("an overlong penalty (sampler.overlong_buffer)", lambda study, s, m: bool(m.sampler.overlong_buffer)),
    Feature(
        "truncated responses left out of the loss (sampler.mask_truncated)",
        lambda study, s, m: m.sampler.mask_truncated,
    ),
    Feature("rollout correction (sampler.correction_cap, rejection_high)", lambda study, s, m: m.sampler.corrects),
    Feature("a ratio to the engine (anchor: rollout)", lambda study, s, m: m.anchor != "old"),
    Feature(
        "an advantage other than grpo and dr_grpo", lambda study, s, m: m.advantage.name not in ("grpo", "dr_grpo")
    ),
    Feature("older rollouts (training.off_policy_steps)", lambda study, s, m: s.off_policy_steps > 0),
    Feature(
        "the engine's log-probabilities as the old policy's (training.old_log_probs)",
        lambda study, s, m: s.old_log_probs != "trainer",
    ),
    Feature("adapters (model.lora)", lambda study, s, m: study.model.lora is not None),
    Feature(
        "updates that do not divide the prompts of a batch (training.updates_per_batch)",
        lambda study, s, m: s.prompts_per_step % s.updates_per_batch != 0,
    ),
]
# The release that each trainer was tested with.
TESTED = {"trl": "1.16", "verl": "0.9"}
PACKAGES = {"trl": ("trl", "accelerate")}


def check_trainers(study: Study) -> None:
    """UserError if an arm of the study needs a feature that its trainer lacks, or the trainer cannot run here."""
    for arm in run_matrix(study).arms.values():
        check_arm(study, arm)


def trainer_notes(study: Study) -> list[str]:
    """Notes on effects of a study's trainers that are easily missed."""
    arms = run_matrix(study).arms.values()
    if not any(arm.training(study).trainer == "verl" and arm.method(study).sampler.dynamic for arm in arms):
        return []
    return [
        "training.trainer: with dynamic sampling verl replaces dropped groups by other groups than the loop, so its "
        "runs are not paired by seed with those of other methods, and differences have wider intervals."
    ]


def check_arm(study: Study, arm: Arm) -> None:
    """UserError if the arm's trainer lacks a feature, is not installed, or cannot run in several processes as here."""
    settings = arm.training(study)
    trainer = settings.trainer
    trainers = {trainer, *(other.training(study).trainer for other in run_matrix(study).arms.values())}
    for other in TESTED:
        if getattr(settings, other) and other not in trainers:
            raise UserError(f"training.{other}: only trainer: {other} reads it, and training.trainer is {trainer}.")
    check_features(study, arm, trainer)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and trainer != "trl":
        raise UserError(
            f"training.trainer: {trainer} is started as one process, and this one is one of "
            f"{os.environ['WORLD_SIZE']}. Set it to trl, or start one process."
        )
    check_installed(trainer)
    if trainer == "trl":
        check_trl_keys(settings)
    if trainer == "verl":
        with_changes(config(study, arm, 0, 1, 1), settings.verl)
        if settings.verl.get("trainer", {}).get("nnodes", 1) != 1:
            raise UserError(
                "training.verl.trainer.nnodes: the SLURM job decides it; leave it out, and set `mpi`, `nodes` and "
                "`tasks` in the profile (docs/slurm.md)."
            )


def check_features(study: Study, arm: Arm, trainer: str) -> None:
    """UserError if ``trainer`` lacks a feature that ``arm`` needs."""
    settings, method = arm.training(study), arm.method(study)
    asked = [feature for feature in FEATURES if feature.is_asked(study, settings, method)]
    if lacking := [feature.text for feature in asked if trainer not in feature.trainers]:
        others = [other for other in TRAINERS if all(other in feature.trainers for feature in asked)]
        instead = f"Set it to {' or '.join(others)}, or leave" if others else "Leave"
        raise UserError(
            f"training.trainer: {trainer} lacks features that {arm.name} needs: {'; '.join(lacking)}. {instead} them "
            "out (docs/trainers.md)."
        )


def check_installed(trainer: str) -> None:
    """UserError if the trainer's package is not installed, or is of a release that was not tested."""
    if trainer not in TESTED:
        return
    how = "run `make setup-verl`" if trainer == "verl" else "run `make setup`, or pip's extra `trl`"
    try:
        installed = verl_version() if trainer == "verl" else version(trainer)
    except PackageNotFoundError as error:
        raise UserError(f"training.trainer: {trainer} is not installed; {how}.") from error
    if not installed.startswith(f"{TESTED[trainer]}."):
        raise UserError(
            f"training.trainer: {trainer} {installed} is installed, and runs were tested with {TESTED[trainer]}; {how}."
        )


def trainer_versions(trainer: str) -> dict[str, str]:
    """Installed versions of a trainer's packages."""
    return {name: version(name) for name in PACKAGES.get(trainer, ())}
