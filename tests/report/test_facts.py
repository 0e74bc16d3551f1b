"""Provenance, cost and protocol of a study."""

from __future__ import annotations

from pathlib import Path

from policygrain.provenance import devices
from policygrain.report.page import cost, protocol, provenance
from policygrain.results.reader import StudyResults
from policygrain.study import Study
from policygrain.study.runs import run_matrix


def test_cost_in_device_hours(study: Study, results: Path) -> None:
    runs = len(run_matrix(study).runs)
    assert cost(StudyResults(results))["in all"] == f"{runs * 6 / 3600:.2f} core-hours"
    assert devices("8 × NVIDIA H100 80GB HBM3") == (8, "GPU") and devices("AMD EPYC 9654 96-Core") == (1, "core")


def test_provenance_and_protocol_of_the_records(results: Path) -> None:
    """In order of the study, each value once; the protocol of the runs' models, not of initial models."""
    found = provenance(StudyResults(results))
    assert found["commit"] == "c0ffee" and found["hardware"] == "a computer" and found["torch"] == "2"
    assert found["vllm"] == "1" and found["transformers"] == "unknown"
    assert found["initial models"] == "tiny s0, tiny s1"
    protocols = protocol(StudyResults(results))
    assert protocols["sampling"] == "2 samples at temperature 1, at most 24 tokens: running total, count"
    assert protocols["problems"] == "running total 12, count 12" and protocols["seed"] == "7"
