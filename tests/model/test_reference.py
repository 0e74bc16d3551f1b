"""The start policy is put back as it was, also after an error."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from policygrain.model.adapters import add_adapter
from policygrain.model.loading import load_model
from policygrain.model.reference import on_device
from policygrain.study.schema import Lora


def test_weights_are_back_in_host_memory_after_an_error(made: tuple[Path, Path]) -> None:
    reference = load_model(str(made[1]))[0]
    tensors = [*reference.parameters(), *reference.buffers()]
    on_host = [tensor.data_ptr() for tensor in tensors]
    with pytest.raises(ZeroDivisionError), on_device(reference, reference) as start:
        for tensor in tensors:  # as if the compute device had a memory of its own
            tensor.data = tensor.data.clone()
        assert start is reference and [tensor.data_ptr() for tensor in tensors] != on_host
        raise ZeroDivisionError
    assert [tensor.data_ptr() for tensor in tensors] == on_host


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed here")
def test_adapters_are_enabled_again_after_an_error(made: tuple[Path, Path]) -> None:
    model = load_model(str(made[1]))[0]
    add_adapter(model, Lora(targets=["q_proj"]), seed=0)
    layers = [module for module in model.modules() if hasattr(module, "disable_adapters")]
    with pytest.raises(ZeroDivisionError), on_device(None, model):
        assert layers and any(layer.disable_adapters is True for layer in layers)
        raise ZeroDivisionError
    assert not any(layer.disable_adapters is True for layer in layers)
