"""Weight transfer to a vLLM engine in the same process, as a backend of vLLM's weight transfer interface.

vLLM's own backends (NCCL, CUDA IPC) send weights between processes. Here trainer and engine share an address space, so
the engine's worker copies each tensor directly into its own layout (fused, split, cast).
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
    """Nothing to connect."""


@dataclass
class Update(WeightTransferUpdateInfo):
    """Names and values of the weights, as in a checkpoint of the model."""

    weights: Iterable[tuple[str, Tensor]]


class InProcessTransfer(WeightTransferEngine[Init, Update]):
    """The backend in the engine's worker. Between start and finish the engine must not generate."""

    init_info_cls = Init
    update_info_cls = Update

    def init_transfer_engine(self, init_info: Init) -> None:
        """Nothing to connect."""

    def start_weight_update(self) -> None:
        """Prepare the model's layers for loading, as from a checkpoint."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load the weights. Complete on return, because both sides use the same CUDA stream."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Update) -> None:
        """Copy the weights into the model's layers."""
        self.model.load_weights(update_info.weights)  # type: ignore[operator]

    def finish_weight_update(self) -> None:
        """Convert the layers to the layout that they compute with."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing to release."""


WeightTransferEngineFactory.register_engine(BACKEND, InProcessTransfer)
