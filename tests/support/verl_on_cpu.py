"""The settings and the environment with which verl runs on a CPU."""

import os
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "VERL_USE_EXTERNAL_MODULES": "tests.support.verl_cpu",
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",  # the name under which its training engines are registered; they ask the platform
    "RAY_worker_niceness": "0",  # Ray would add 15 to this process's
}
SETTINGS: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())  # `training.verl`
