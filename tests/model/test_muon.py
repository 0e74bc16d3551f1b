"""Muon in float32 is torch's Muon up to bfloat16."""

from __future__ import annotations

import pytest
import torch

from policygrain.model.tiny import Muon, orthogonalised


def test_updates_are_those_of_torch() -> None:
    torch.manual_seed(0)
    shapes = [(8, 8), (16, 8), (8, 16), (8, 8)]
    start = [torch.randn(shape) for shape in shapes]
    ours = [w.clone().requires_grad_() for w in start]
    theirs = [w.clone().requires_grad_() for w in start]
    optimizers = [
        Muon(ours, lr=0.1, weight_decay=0.1),
        torch.optim.Muon(theirs, lr=0.1, weight_decay=0.1, adjust_lr_fn="original"),
    ]
    for _ in range(5):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for one, other, before in zip(ours, theirs, start, strict=True):
        difference, moved = (one - other).norm().item(), (other - before).norm().item()
        assert 0 < difference < 0.02 * moved  # torch iterates in bfloat16


@pytest.mark.parametrize("shape", [(3, 6, 4), (3, 4, 6)])
def test_singular_values_are_moved_close_to_1(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(shape)
    values = torch.linalg.svdvals(orthogonalised(matrices))
    assert values.min() > 0.6 and values.max() < 1.3
    alone = orthogonalised(matrices[1:2])
    assert torch.allclose(orthogonalised(matrices)[1], alone[0], atol=1e-5)
