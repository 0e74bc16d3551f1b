"""Use of this process's GPU, under MLflow's names of system metrics."""

from __future__ import annotations

import contextlib

import torch


def gpu_use() -> dict[str, float]:
    """Largest memory in use so far and current utilisation of the GPU; empty without a GPU.

    The utilisation needs the package nvidia-ml-py, and a driver that knows it; without them it is left out.
    """
    if not torch.cuda.is_available():
        return {}
    number = torch.cuda.current_device()
    use = {f"system/gpu_{number}_memory_usage_megabytes": torch.cuda.max_memory_allocated() / 2**20}
    with contextlib.suppress(Exception):  # pynvml has its own errors, such as "not supported" on a MIG device
        use[f"system/gpu_{number}_utilization_percentage"] = float(torch.cuda.utilization())
    return use
