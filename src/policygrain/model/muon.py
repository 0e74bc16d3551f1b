"""Muon for small models on a CPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

# Of the quintic iteration, chosen by Jordan et al. for a steep slope at 0.
A, B, C = 3.4445, -4.7750, 2.0315


class Muon(torch.optim.Optimizer):
    """Muon (https://kellerjordan.github.io/posts/muon/) with Nesterov momentum, for matrices, as `torch.optim.Muon`.

    torch iterates in bfloat16, which processors without such instructions emulate: that took most of a step. Here it is
    float32, and the matrices of one shape are iterated together.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of all matrices that have a gradient."""
        for group in self.param_groups:
            shapes: dict[Any, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    shapes[weight.shape].append(weight)
            for (rows, columns), weights in shapes.items():
                directions = torch.stack([self._direction(w, group["momentum"]) for w in weights])
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                for weight, update in zip(weights, orthogonalised(directions), strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=rate)

    def _direction(self, weight: Tensor, momentum: float) -> Tensor:
        state = self.state[weight]
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        state["momentum"].lerp_(weight.grad, 1 - momentum)
        return weight.grad.lerp(state["momentum"], momentum)  # type: ignore[union-attr]


def orthogonalised(matrices: Tensor, steps: int = 5) -> Tensor:
    """Matrices [n, rows, columns] with all singular values moved close to 1, by Newton–Schulz iteration."""
    wide = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
    x = wide / wide.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x.mT if wide is not matrices else x
