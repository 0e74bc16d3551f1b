"""Studies of one arm."""

from __future__ import annotations

from policygrain.study import Study
from policygrain.study.runs import Arm, run_matrix


def arm_of(study: Study) -> Arm:
    (arm,) = run_matrix(study).arms.values()
    return arm
