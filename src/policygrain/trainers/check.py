"""What a trainer lacks or cannot do here: `policygrain check` and `policygrain train` refuse an arm that needs it."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from ..errors import UserError
from ..integrations.options import NEEDS, VERL_LACKS, reads_entropies
from ..objective.advantage import TurnAdvantage
from ..study.runs import run_matrix
from .trl_settings import check_keys as check_trl_keys
from .verl_config import config, verl_version, with_changes

if TYPE_CHECKING:
    from ..objective import Method
    from ..study import Study
    from ..study.runs import Arm

TRAINERS = ("policygrain", "trl", "verl")
# The release that each trainer was tested with.
TESTED = {"trl": "1.16", "verl": "0.9"}


def lacking(trainer: str, study: Study, arm: Arm) -> list[str]:
    """The features that an arm needs and a trainer lacks."""
    settings, method = arm.training(study), arm.method(study)
    sampler = method.sampler
    needed = {
        "parts by turns (in ratio, advantage, aggregation or sampler): a response of a study is one turn, and only "
        "your own trainer can have more": _tells_turns(method)
    }
    if trainer != "policygrain":
        needed[NEEDS["mtp_heads"]] = "mtp_heads" in method.needs
    if trainer == "verl":
        # verl computes statistics of a step over the micro-batch, and masks from other inputs.
        needed |= {NEEDS[need]: need in method.needs for need in (*VERL_LACKS, "step_log_probs")}
        needed |= {
            "a mask by entropies (TEPO)": reads_entropies(method),
            "an overlong penalty (sampler.overlong_buffer)": bool(sampler.overlong_buffer),
            "truncated responses left out of the loss (sampler.mask_truncated)": sampler.mask_truncated,
            "rollout correction (sampler.correction_cap, rejection_high)": sampler.corrects,
            "a ratio to the engine (anchor: rollout)": method.anchor != "old",
            "an advantage other than grpo and dr_grpo": method.advantage.name not in ("grpo", "dr_grpo"),
            "older rollouts (training.off_policy_steps)": settings.off_policy_steps > 0,
            "the engine's log-probabilities as the old policy's (training.old_log_probs)": settings.old_log_probs
            != "trainer",
            "adapters (model.lora)": study.model.lora is not None,
            "updates that do not divide the prompts of a batch (training.updates_per_batch)": bool(
                settings.prompts_per_step % settings.updates_per_batch
            ),
        }
    return [text for text, is_needed in needed.items() if is_needed]


def _tells_turns(chosen: Method) -> bool:
    """Whether a method reads which turn of its response a token is in: runs of 1 in the response mask."""
    return (
        "turns" in chosen.needs
        or getattr(chosen.ratio, "layout", None) == "turns"
        or isinstance(chosen.advantage, TurnAdvantage)
        or "turn" in (chosen.sampler.correction_grain, chosen.sampler.rejection_grain)
    )


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
    if lacks := lacking(trainer, study, arm):
        others = [other for other in TRAINERS if not lacking(other, study, arm)]
        instead = f"Set it to {' or '.join(others)}, or leave" if others else "Leave"
        raise UserError(
            f"training.trainer: {trainer} lacks features that {arm.name} needs: {'; '.join(lacks)}. {instead} them out "
            "(docs/trainers.md)."
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
    return {name: version(name) for name in ("trl", "accelerate")} if trainer == "trl" else {}
