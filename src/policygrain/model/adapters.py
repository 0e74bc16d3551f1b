"""LoRA (arXiv 2106.09685), by peft: W + (alpha / rank) B A, of which A and B alone are trained.

With the adapter switched off the model is the start policy, so a penalty to that needs no second model.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..errors import UserError
from .sharding import gathered

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..study.schema import Lora

SITE = ".lora_"  # what peft puts between a module's name and its A and B


def adapt(model: PreTrainedModel, settings: Lora, seed: int) -> None:
    """Put an adapter, which changes nothing yet, into ``model``; everything else is frozen. A is drawn by ``seed``."""
    if importlib.util.find_spec("peft") is None:
        raise UserError("model.lora: the package peft is missing; install it with `pip install policygrain[lora]`.")
    import torch
    from peft import LoraConfig

    # alpha is declared as int, and all that is made of it is alpha / rank.
    config = LoraConfig(r=settings.rank, lora_alpha=settings.alpha, target_modules=settings.targets)  # type: ignore[arg-type]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            model.add_adapter(config)
        except ValueError as error:  # no module has such a name
            raise UserError(f"model.lora.targets: {str(error).splitlines()[0]}") from error


def has_adapter(model: PreTrainedModel) -> bool:
    """Whether ``model`` was adapted."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def merged(model: PreTrainedModel, name: str, state: dict[str, Tensor]) -> tuple[str, Tensor]:
    """A weight of an adapted model under its plain name, with what the adapter adds to it."""
    weight = gathered(state[name].detach())
    module, base, leaf = name.rpartition(".base_layer.")
    if not base:
        return name, weight
    if leaf == "weight":
        a, b = (gathered(state[f"{module}{SITE}{x}.default.weight"].detach()) for x in "AB")
        adapter: Any = model.get_submodule(module)
        weight = weight + (adapter.scaling["default"] * (b @ a)).to(weight.dtype)
    return f"{module}.{leaf}", weight
