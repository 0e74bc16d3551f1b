"""What the clock of a step reports of the machine."""

from __future__ import annotations

import time

import pytest

from policygrain.clock import Clock
from policygrain.train.steps import gpu_use


def test_processor_time_is_a_share_of_the_time_that_passed() -> None:
    clock = Clock()
    with clock("wait"):
        time.sleep(0.2)
    idle = clock.report(0)
    assert 0 <= idle["system/cpu_utilization_percentage"] < 60
    begin, busy = time.process_time(), Clock()
    with busy("work"):
        while time.process_time() - begin < 0.2:
            pass
    found = busy.report(10)
    assert found["system/cpu_utilization_percentage"] > idle["system/cpu_utilization_percentage"]
    assert found["time"] == pytest.approx(time.time(), abs=60) and found["tokens_per_second"] > 0


def test_without_a_gpu_nothing_is_said_of_it() -> None:
    import torch

    assert bool(gpu_use()) is torch.cuda.is_available()
