"""LoRA (arXiv 2106.09685) by peft: W + (alpha / rank) B A, where only A and B are trained.

With the adapter disabled the model is the initial policy, so a KL penalty to the initial policy needs no second model.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..study.schema import Lora


def add_adapter(model: PreTrainedModel, settings: Lora, seed: int) -> None:
    """Add a LoRA adapter to ``model`` in place and freeze all other weights.

    A is initialised at random from ``seed`` and B with zeros, so the model's output does not change yet.
    UserError if peft is not installed or no module has one of the ``settings.targets`` as its name.
    """
    if importlib.util.find_spec("peft") is None:
        raise UserError("model.lora: the package peft is missing; install it with `pip install policygrain[lora]`.")
    import torch
    from peft import LoraConfig

    # peft declares alpha as int but only uses it in alpha / rank.
    config = LoraConfig(r=settings.rank, lora_alpha=settings.alpha, target_modules=settings.targets)  # type: ignore[arg-type]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            model.add_adapter(config)
        except ValueError as error:  # no module of that name
            raise UserError(f"model.lora.targets: {str(error).splitlines()[0]}") from error


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Set the weights of the adapter of ``model`` to those that `save_pretrained` wrote into ``folder``."""
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    prefix = "base_model.model."  # peft's, which the saved names have
    saved = load_file(folder / "adapter_model.safetensors")
    set_peft_model_state_dict(model, {name.removeprefix(prefix): weight for name, weight in saved.items()})


def has_adapter(model: PreTrainedModel) -> bool:
    """Whether ``model`` has a LoRA adapter."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))
