"""What trainers compute under a method's name with their defaults, as objectives here (`make test-peers`)."""

import sys
import typing
from collections.abc import Callable
from importlib.metadata import distribution
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import typing_extensions
from torch import Tensor

from policygrain import Method, method
from policygrain.integrations.conformance import compare, random_fields
from tests.support.batches import SIXTEEN
from tests.support.trainer_losses import trinity_objective, trl_objective, verl_config, verl_objective

MICRO = (1, 2, 4)  # micro-batches of a step
PACKAGES = {"TRL": "trl", "verl": "verl", "AReaL": "areal", "Trinity-RFT": "trinity", "SkyRL": "skyrl"}
Loss = Callable[..., Tensor]  # of fields and micro-batches


def areal_objective(fields: dict[str, Any], level: str = "token", sapo: bool = False) -> Tensor:
    """AReaL's loss with the defaults of its actor's configuration."""
    from areal.api.cli_args import PPOActorConfig
    from areal.utils.functional import ppo_actor_loss_fn, sapo_loss_fn

    defaults = {name: field.default for name, field in PPOActorConfig.__dataclass_fields__.items()}
    shared = {
        "logprobs": fields["log_probs"],
        "old_logprobs": fields["old_log_probs"],
        "advantages": fields["advantages"].unsqueeze(1).expand_as(fields["log_probs"]),
        "loss_mask": fields["mask"].bool(),
        "importance_sampling_level": level,
    }
    if sapo:
        return sapo_loss_fn(**shared, tau_pos=defaults["sapo_tau_pos"], tau_neg=defaults["sapo_tau_neg"])[0]
    return ppo_actor_loss_fn(
        **shared,
        proximal_logprobs=fields["old_log_probs"],
        eps_clip=defaults["eps_clip"],
        eps_clip_higher=defaults["eps_clip_higher"],
        c_clip=defaults["c_clip"],
    )[0]


def skyrl_module() -> tuple[Any, Any]:
    """SkyRL's module of losses, and the class of their configuration."""
    # On Python 3.11 pydantic refuses the TypedDict of `typing`, which SkyRL's configuration has; and the wheel has
    # skyrl_gym in a folder that is no package.
    gym = str(distribution("skyrl").locate_file("skyrl-gym"))
    with (
        mock.patch.object(typing, "TypedDict", typing_extensions.TypedDict),
        mock.patch.object(sys, "path", [*sys.path, gym]),
    ):
        from skyrl.backends.skyrl_train.utils import ppo_utils
        from skyrl.train.config import AlgorithmConfig
    return ppo_utils, AlgorithmConfig


def skyrl_objective(name: str, fields: dict[str, Any], micro: int = 1) -> Tensor:
    """SkyRL's policy loss with its default settings; its trainer divides advantages and adds up micro-batches."""
    ppo_utils, algorithm = skyrl_module()
    config = algorithm(policy_loss_type=name)
    log_probs, mask = fields["log_probs"], fields["mask"].to(fields["log_probs"].dtype)
    rows = len(mask) // micro
    advantages = fields["advantages"].unsqueeze(1).expand_as(mask)
    scaled = ppo_utils.apply_loss_reduction_to_advantages_minibatch(
        advantages, mask, config.loss_reduction, rows, mask.shape[1]
    )
    loss_of = ppo_utils.PolicyLossRegistry.get(name)
    parts = [slice(i, i + rows) for i in range(0, len(mask), rows)]
    losses = [loss_of(log_probs[p], fields["old_log_probs"][p], scaled[p], config, mask[p])[0] for p in parts]
    return torch.stack(losses).sum()


class Name(NamedTuple):
    """A name in a trainer, and the objective that it is; None: no known one."""

    trainer: str
    setting: str
    found: Method | None
    loss: Loss
    depends_on_division: bool = False  # of a step into micro-batches
    divided: bool = True  # whether ``loss`` can divide a step as the trainer does


def trl(setting: str, found: Method, **how: Any) -> Name:
    return Name("TRL", setting, found, lambda fields, micro: trl_objective(fields, micro=micro, **how)[0])


def verl(mode: str, found: Method, depends: bool = False) -> Name:
    def loss(fields: dict[str, Any], micro: int) -> Tensor:
        return verl_objective(mode, verl_config(mode), fields, micro)

    return Name("verl", mode, found, loss, depends)


def areal(setting: str, found: Method, **how: Any) -> Name:
    return Name("AReaL", setting, found, lambda fields, _: areal_objective(fields, **how), divided=False)


def trinity(name: str, found: Method | None) -> Name:
    return Name("Trinity-RFT", name, found, lambda fields, _: trinity_objective(name, fields), divided=False)


def skyrl(name: str, found: Method, depends: bool = False) -> Name:
    return Name("SkyRL", name, found, lambda fields, micro: skyrl_objective(name, fields, micro), depends)


PPO = {"low": 0.2, "high": 0.2}
MEAN = "token_mean"
KL_COV = {"name": "kl_cov", "coefficient": 0.1, "fraction": 2e-4}
GRPO, GSPO = method("grpo", aggregation=MEAN), method("gspo", aggregation=MEAN, clip=PPO)
NAMES = [
    trl("loss_type=grpo", method("grpo"), loss_type="grpo"),
    trl("loss_type=dapo (the default)", method("dapo", clip=PPO)),
    trl("loss_type=dr_grpo", method("dr_grpo"), loss_type="dr_grpo"),
    trl("importance_sampling_level=sequence", GSPO, level="sequence"),
    trl("loss_type=cispo", method("cispo", clip={"cap": 0.2}), loss_type="cispo"),
    trl("loss_type=luspo", method("luspo", clip=PPO, ratio="token"), loss_type="luspo"),
    *(trl(f"loss_type={name}", method(name), loss_type=name) for name in ("sapo", "vespo")),
    verl("vanilla", GRPO),
    verl("gspo", GSPO),
    verl("cispo", method("cispo", clip={"low": 0.8, "cap": 1.2})),
    verl("geo_mean", method("gmpo", clip=PPO), depends=True),
    verl("sapo", method("sapo")),
    *(verl(name, method(name, clip=PPO)) for name in ("dppo_tv", "dppo_kl")),
    verl("kl_cov", method("kl_cov", penalties=[KL_COV]), depends=True),
    areal("importance_sampling_level=token", GRPO),
    areal("importance_sampling_level=sequence", GSPO, level="sequence"),
    areal("use_sapo_loss=true", method("sapo", aggregation=MEAN), sapo=True),
    trinity("ppo", GRPO),
    trinity("gspo", method("gspo")),
    trinity("cispo", method("cispo", clip={"cap": 1.28})),
    trinity("sapo", None),
    trinity("topr", method("topr", aggregation=MEAN, ratio="token")),
    skyrl("regular", GRPO),
    skyrl("gspo", GSPO),
    skyrl("cispo", method("cispo", clip={"low": 1.0, "cap": 6.0})),
    skyrl("sapo", method("sapo", aggregation=MEAN)),
    skyrl("dppo", method("dppo_tv", clip=PPO)),
    skyrl("kl_cov", method("kl_cov", penalties=[KL_COV | {"coefficient": float(sum(SIXTEEN)), "fraction": 0.2}]), True),
]


@pytest.mark.parametrize("name", NAMES, ids=lambda one: f"{one.trainer} {one.setting}")
@pytest.mark.filterwarnings("ignore")  # about versions of vLLM
def test_a_name_is_this_objective(name):
    """On 16 responses in float64, by the gradient; SAPO in Trinity-RFT has a constant weight for the gate."""
    pytest.importorskip(PACKAGES[name.trainer], reason=f"{name.trainer} is not installed here (make test-peers)")
    fields = random_fields(SIXTEEN, 3, 0.3)
    # Log-probabilities below 0: DPPO reads probabilities.
    fields |= {key: fields[key].clamp(max=-0.01) for key in ("log_probs", "old_log_probs")}
    found = name.found or method("sapo", aggregation=MEAN)
    compared = compare(lambda **given: name.loss(given, 1), found, {"this": fields}, value=False, rtol=1e-6)
    assert bool(compared.problems) == (name.found is None), compared.text
    if name.divided:
        losses = [float(name.loss(fields, micro)) for micro in MICRO]
        assert (max(losses) - min(losses) > 1e-9 * max(map(abs, losses))) == name.depends_on_division
