"""The weights of a model as others want them: all of them, under the names of a plain model.

Engines, the final model and nothing else need them so. Where a model is sharded all ranks have to ask together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .adapters import SITE, has_adapter, merged
from .sharding import gathered, is_sharded

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def full_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Name and value of each weight, one gathered at a time, an adapter's product added to what it adapts.

    Tied weights come under each of their names.
    """
    state = model.state_dict()
    for name, tensor in state.items():
        if not has_adapter(model):
            yield name, gathered(tensor.detach())
        elif f"{SITE}A" not in name and f"{SITE}B" not in name:
            yield merged(model, name, state)


def whole(model: PreTrainedModel, place: torch.device | None = None, keep: bool = True) -> PreTrainedModel | None:
    """``model`` itself where it is plain, else a plain one with its weights of this moment, at ``place``.

    None where not ``keep``: the caller has only helped the other ranks to gather.
    """
    if not (is_sharded(model) or has_adapter(model)):
        return model
    weights = {name: tensor.to(place) for name, tensor in full_weights(model) if keep}
    if not keep:
        return None
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        plain: PreTrainedModel = AutoModelForCausalLM.from_config(model.config)
    plain.load_state_dict(weights, assign=True)
    plain.tie_weights()
    for name, buffer in model.named_buffers():  # rotary frequencies, which no state has
        owner, _, leaf = name.rpartition(".")
        setattr(plain.get_submodule(owner), leaf, buffer.to(place))
    return plain.eval()
