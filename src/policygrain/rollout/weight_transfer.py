"""Weights for an engine in this process, by vLLM's own interface for training.

vLLM's back ends (NCCL, CUDA IPC) carry weights between processes. Here trainer and engine see the same tensors, so
nothing has to be carried: the engine's worker copies each into its own layout (fused, cut, cast).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "in_process"


@dataclass
class Init(WeightTransferInitInfo):
    """There is nothing to connect."""


@dataclass
class Update(WeightTransferUpdateInfo):
    """Names and tensors as in a checkpoint of the model."""

    weights: Iterable[tuple[str, Tensor]]


class InProcessTransfer(WeightTransferEngine[Init, Update]):
    """The worker's side. Between start and finish the engine must not be asked for anything else."""

    init_info_cls = Init
    update_info_cls = Update

    def init_transfer_engine(self, init_info: Init) -> None:
        """There is nothing to connect."""

    def start_weight_update(self) -> None:
        """Make the model's layers ready to be loaded as from a checkpoint."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Take the weights; done when it returns, since both sides share a stream."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Update) -> None:
        """Copy the weights into the model."""
        self.model.load_weights(update_info.weights)  # type: ignore[operator]

    def finish_weight_update(self) -> None:
        """Bring the layers into the form in which they compute."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """There is nothing to release."""


WeightTransferEngineFactory.register_engine(BACKEND, InProcessTransfer)
