"""A method: its data and the functions that they select."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts import Custom
from .schema import MethodSpec

if TYPE_CHECKING:
    from torch import Tensor

    from ..objective.batch import TokenBatch
    from ..objective.loss import LossOutput


class Method(MethodSpec):
    """A ratio, a clip, an aggregation, penalties, an advantage and a sampler. The first computation imports torch."""

    def advantages(self, rewards: Tensor) -> Tensor:
        """Rewards [prompts, group] → advantages [prompts, group]."""
        from . import compute

        return compute.function(self.advantage)(rewards)

    def loss(self, batch: TokenBatch) -> LossOutput:
        """The objective on a batch: a scalar loss with gradient, and metrics."""
        from . import compute

        return compute.loss(self, batch)

    def view(self, batch: TokenBatch) -> dict[str, Tensor]:
        """What it computes for each token: `ratio`, `clipped_low`, `clipped_high`, `entropy_drop`. [batch, tokens]."""
        from . import compute

        return compute.view(self, batch)

    def check(self) -> None:
        """Import custom functions and run the method on a small example. UserError names the key.

        Without custom functions its types have checked everything, and nothing is imported.
        """
        if any(isinstance(part, Custom) for part in self.parts().values()):
            from . import compute

            compute.check(self)
