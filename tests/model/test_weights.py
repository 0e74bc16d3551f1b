"""Copies of a model with rounded weights."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policygrain.model.loading import load_model
from policygrain.model.precision import set_compute_dtype
from policygrain.model.weights import _rounded, rounded_copy


@given(seed=st.integers(0, 1000), bits=st.integers(2, 8), scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e3]))
def test_a_row_has_few_values_and_each_is_the_nearest(seed: int, bits: int, scale: float) -> None:
    weight = scale * torch.randn(4, 300, generator=torch.Generator().manual_seed(seed))
    weight[1] = 0
    found = _rounded(weight, bits)
    step = weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    assert all(len(row.unique()) <= 2**bits - 1 for row in found)
    assert ((found - weight).abs() <= 0.5001 * step).all()
    assert (found[1] == 0).all()
    torch.testing.assert_close(found, -_rounded(-weight, bits), rtol=0, atol=0)


def test_fewer_bits_are_further_from_the_model(made: tuple[Path, Path]) -> None:
    model, _ = load_model(str(made[1]))
    before = copy.deepcopy(model.state_dict())
    ids = torch.arange(10, device=model.device).unsqueeze(0)
    with torch.no_grad():
        logits = model(ids).logits
        distances = [(rounded_copy(model, bits)(ids).logits - logits).abs().mean() for bits in (8, 6, 4, 2)]
    assert 0 < distances[0] < distances[1] < distances[2] < distances[3]
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items()), "it is a copy"


def test_it_rounds_matrices_except_embeddings(made: tuple[Path, Path]) -> None:
    model, _ = load_model(str(made[1]))
    weights, rounded = model.state_dict(), rounded_copy(model, 4).state_dict()
    changed = {name for name in weights if not torch.equal(weights[name], rounded[name])}
    assert changed == {name for name in weights if "proj.weight" in name}
    assert len(changed) == 7 * model.config.num_hidden_layers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_has_the_precision_of_the_passes(made: tuple[Path, Path], dtype: torch.dtype) -> None:
    model, _ = load_model(str(made[1]))
    set_compute_dtype(model, dtype)
    assert {p.dtype for p in rounded_copy(model, 4).parameters()} == {dtype}
