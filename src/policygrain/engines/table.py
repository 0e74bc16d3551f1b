"""Features that only some trainers support; `policygrain check` and `policygrain train` refuse the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from ..errors import UserError
from ..study.runs import run_matrix
from ..tasks.tools import TOOLS
from .trl_settings import check_keys as check_trl_keys
from .verl_config import config, verl_version, with_changes

if TYPE_CHECKING:
    from ..objective import Method
    from ..study import Study
    from ..study.runs import Arm
    from ..study.schema import Training


IsAsked = Callable[["Study", "Training", "Method"], bool]


def _needs(name: str) -> IsAsked:
    return lambda study, settings, method: name in method.needs


def calls_tools(sources: Iterable[str]) -> list[str]:
    """Those of ``sources`` whose problems have a tool."""
    return [source for source in sources if source in TOOLS]


# Features that only some trainers support: description → whether an arm uses it.
ONLY_LOOP: dict[str, IsAsked] = {
    "problems with a tool (data.train)": lambda study, s, m: bool(calls_tools(study.data.train)),
    "multi-token prediction heads": _needs("mtp_heads"),
}
ONLY_LOOP_AND_TRL: dict[str, IsAsked] = {
    "batches sampled ahead (training.ahead)": lambda study, s, m: s.ahead > 0,
    "the initial policy's log-probabilities in the loss": _needs("reference"),
    "an entropy with gradient in the loss": _needs("entropy_gradient"),
    "segments of responses": _needs("segments"),
    "a ratio to the engine (anchor: rollout)": lambda study, s, m: m.anchor != "old",
    "the age of each response in the loss (anchor: loglinear)": _needs("staleness"),
    "an advantage other than grpo and dr_grpo": lambda study, s, m: m.advantage.name not in ("grpo", "dr_grpo"),
    "the engine's log-probabilities as the old policy's (training.old_log_probs)": (
        lambda study, s, m: s.old_log_probs != "trainer"
    ),
    "rounded weights in the engine (training.sampler_bits)": lambda study, s, m: s.sampler_bits is not None,
    "controls (training.shuffle_rewards, training.sampling_seed)": (
        lambda study, s, m: s.shuffle_rewards or s.sampling_seed != 0
    ),
    "adapters (model.lora)": lambda study, s, m: study.model.lora is not None,
    "updates that do not divide the prompts of a batch (training.updates_per_batch)": (
        lambda study, s, m: s.prompts_per_step % s.updates_per_batch != 0
    ),
}
LACKS = {"policygrain": {}, "trl": ONLY_LOOP, "verl": ONLY_LOOP | ONLY_LOOP_AND_TRL}
# The release that each trainer was tested with.
TESTED = {"trl": "1.16", "verl": "0.9"}
PACKAGES = {"trl": ("trl", "accelerate")}


def check_trainers(study: Study) -> None:
    """UserError if an arm of the study asks for something that its trainer does not have."""
    for arm in run_matrix(study).arms.values():
        check_arm(study, arm)


def trainer_notes(study: Study) -> list[str]:
    """Notes on effects of a study's trainers that are easily missed."""
    arms = run_matrix(study).arms.values()
    if not any(arm.training(study).trainer == "verl" and arm.method(study).sampler.dynamic for arm in arms):
        return []
    return [
        "training.trainer: with dynamic sampling verl samples other groups than the loop in place of dropped ones, so "
        "its runs of a seed are not paired with those of other methods: differences have wider intervals."
    ]


def check_arm(study: Study, arm: Arm) -> None:
    """UserError if a trainer lacks something that ``arm`` asks for, is not installed, or is one process by design."""
    settings = arm.training(study)
    trainer = settings.trainer
    trainers = {trainer, *(other.training(study).trainer for other in run_matrix(study).arms.values())}
    for other in ("trl", "verl"):
        if getattr(settings, other) and other not in trainers:
            raise UserError(f"training.{other}: only trainer: {other} reads it, and training.trainer is {trainer}.")
    check_features(study, arm, trainer)
    _check_tools(study, arm)
    if trainer == "trl":
        check_trl_keys(settings)
    if trainer == "verl":
        with_changes(config(study, arm, 0, 1, 1), settings.verl)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and trainer != "trl":
        raise UserError(
            f"training.trainer: {trainer} is started as one process, and this one is one of "
            f"{os.environ['WORLD_SIZE']}. Set it to trl, or start one process."
        )
    check_installed(trainer)


def _check_tools(study: Study, arm: Arm) -> None:
    """UserError if the engine of ``arm``, or prediction heads, cannot have the tool of its training problems."""
    if not (sources := calls_tools(study.data.train)):
        return
    if arm.training(study).engine == "vllm":
        raise UserError(
            f"training.engine: vllm does not call tools while it samples, and {sources[0]} in data.train has one. Set "
            "it to transformers."
        )
    if arm.method(study).n_mtp_heads:
        raise UserError(
            f"data.train: {sources[0]} has a tool, whose output prediction heads ({arm.name}) would learn. Leave one "
            "of them out, or set `ratio: {future: backbone}`."
        )


def check_features(study: Study, arm: Arm, trainer: str) -> None:
    """UserError if ``trainer`` lacks something that ``arm`` asks for."""
    settings, method = arm.training(study), arm.method(study)
    lacking = [text for text, is_asked in LACKS[trainer].items() if is_asked(study, settings, method)]
    if lacking:
        raise UserError(
            f"training.trainer: {trainer} does not have what {arm.name} asks for: {'; '.join(lacking)}. Set it to "
            "policygrain, or leave that out (docs/training.md)."
        )


def check_installed(trainer: str) -> None:
    """UserError if the trainer's package is not installed, or is of a release that was not tested."""
    if trainer not in TESTED:
        return
    how = "run `make setup-verl`" if trainer == "verl" else "run `make setup`, or `pip install policygrain[trl]`"
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
