"""The settings and the environment with which verl runs on a CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "VERL_USE_EXTERNAL_MODULES": "tests.support.verl_cpu",
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",  # the name under which its training engines are registered; they ask the platform
    "RAY_worker_niceness": "0",  # Ray would add 15 to this process's
}
# `training.verl`; verl's own defaults are for GPUs.
_FSDP2 = {"strategy": "fsdp2", "use_torch_compile": False}
SETTINGS: dict[str, Any] = {
    "trainer": {"device": "cpu"},
    "actor_rollout_ref": {
        "model": {
            "override_config": {"attn_implementation": "sdpa"},
            "use_remove_padding": False,
            "enable_gradient_checkpointing": False,
        },
        "actor": {**_FSDP2, "fsdp_config": {**_FSDP2, "model_dtype": "fp32"}},
        "rollout": {
            "name": "transformers",
            "tensor_model_parallel_size": 1,
            "free_cache_engine": False,
            "agent": {"num_workers": 1},
            "log_prob_use_dynamic_bsz": True,
            "load_format": "auto",
        },
    },
    "data": {"dataloader_num_workers": 0, "filter_overlong_prompts": False},
    "ray_kwargs": {"ray_init": {"num_cpus": 16, "num_gpus": 1, "include_dashboard": False}},  # what Ray counts
    "reward": {"num_workers": 1},
    "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 1}}},
}
