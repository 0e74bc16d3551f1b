"""What a study and the environment say so that verl trains on a CPU by `verl_cpu.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..conftest import ROOT

ENVIRONMENT = {
    "PYTHONPATH": f"{ROOT / 'tests' / 'support'}:{ROOT / 'src'}",
    "VERL_USE_EXTERNAL_MODULES": "verl_cpu",
    "VERL_PLATFORM": "cpu",
    # So its registry of training engines finds FSDP, whose code asks the platform for the device.
    "VERL_ENGINE_DEVICE": "cuda",
    "HYDRA_FULL_ERROR": "1",
    "RAY_worker_niceness": "0",  # Ray would add 15 to this process's
}


def settings(folder: Path) -> dict[str, Any]:
    """`training.verl` of a study that is trained on a CPU; a file of it is written into ``folder``."""
    agent = folder / "agent.yaml"
    agent.write_text("- {name: plain, _target_: verl_cpu.single_turn}\n")
    plain = {"strategy": "fsdp2", "dtype": "float32", "model_dtype": "fp32", "use_torch_compile": False}
    return {
        "actor_rollout_ref": {
            "model": {
                "override_config": {"attn_implementation": "sdpa"},
                "use_remove_padding": False,
                "enable_gradient_checkpointing": False,
            },
            "actor": {"strategy": "fsdp2", "use_torch_compile": False, "fsdp_config": plain},
            "rollout": {
                "name": "transformers",
                "tensor_model_parallel_size": 1,
                "free_cache_engine": False,
                "agent": {"num_workers": 1, "agent_loop_config_path": str(agent), "default_agent_loop": "plain"},
                "log_prob_use_dynamic_bsz": True,
                "load_format": "auto",
                "dtype": "float32",
            },
        },
        "trainer": {"device": "cpu", "nnodes": 1, "n_gpus_per_node": 1},
        "data": {"dataloader_num_workers": 0, "filter_overlong_prompts": False},
        "ray_kwargs": {"ray_init": {"num_cpus": 16, "num_gpus": 1, "include_dashboard": False}},
        "reward": {"num_workers": 1},
        "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 1}}},
    }
