"""A study that takes seconds, its data and initial model, for tests of the real trainer."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from policygrain.data.sources import prepare_benchmarks, prepare_training
from policygrain.paths import DataFolder, RunFolder, StudyFolder
from policygrain.results import run_metrics, run_summary
from policygrain.study import Study, parse_study
from policygrain.study.runs import Arm, run_matrix
from policygrain.train.start_model import build_start_model
from policygrain.train.stopping import Stop
from policygrain.trainers.run import train_run

SAMPLED = ("total_tokens", "reward_mean", "response_length_mean")
SMALL: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("small.yaml").read_text())


def small_study(**changes: Any) -> Study:
    """SMALL with sections changed key by key."""
    merged = {k: SMALL[k] | v if isinstance(v, dict) and k in SMALL else v for k, v in changes.items()}
    return parse_study(SMALL | merged, Path("small.yaml"))


def study_of(base: str, own: dict[str, Any] | None = None, **training: Any) -> Study:
    """The small study with one arm: the method ``base`` with changes of its ``own``."""
    methods = {"own": {"base": base, **(own or {})}}
    return small_study(training=training, methods=methods, experiments={"headline": {"methods": ["own"]}})


def set_key(data: Any, key: str, value: Any) -> None:
    """Set a key such as `evaluation.benchmarks.0.name` in the data of a study."""
    *parents, last = key.split(".")
    for part in parents:
        data = data[int(part)] if part.isdecimal() else data.setdefault(part, {})
    data[int(last) if last.isdecimal() else last] = value


def prepare(study: Study, out: DataFolder) -> None:
    """Write a study's problems into ``out``."""
    prepare_training(study, out)
    prepare_benchmarks(study, out)


def make_start(folder: Path) -> tuple[Path, Path]:
    """(data, initial model) of the small study, where ``folder`` as its results has them."""
    study, results = small_study(), StudyFolder(folder)
    prepare(study, results.data)
    build_start_model(study, 0, results.data, results.start(0))
    return results.data.path, results.start(0).path


def train_small(
    study: Study, run_dir: Path, data: Path, start: Path, arm: str | None = None, stop: Stop | None = None
) -> Path:
    """A run of the real trainer; the study's first arm, or the one called ``arm``."""
    arms = run_matrix(study).arms
    chosen = next(iter(arms.values())) if arm is None else arms.get(arm) or Arm.of(study, arm)
    train_run(study, chosen, 0, RunFolder(run_dir), str(start), DataFolder(data), stop)
    return run_dir


def trained(study: Study, run_dir: Path, made: tuple[Path, Path]) -> list[dict[str, Any]]:
    """The metrics of a run of the study's first arm, by the data and initial model in ``made``."""
    return run_metrics(RunFolder(train_small(study, run_dir, *made)))


def write_study(path: Path, content: dict[str, Any]) -> Path:
    """A study file with this content."""
    path.write_text(yaml.safe_dump(content))
    return path


def assert_same_end(one: Path, other: Path) -> None:
    """Two runs ended with the same metrics, byte for byte, and the same model."""
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    digests = {run_summary(RunFolder(run)).model_digest for run in (one, other)}
    assert len(digests) == 1, digests


def assert_same_run(one: Path, other: Path) -> bool:
    """Numbers differ by rounding until it changes a sampled token, which after an update it may. Whether it never did.

    A run with other prompts or sampling seeds would have other responses altogether.
    """
    rows, same = (run_metrics(RunFolder(run)) for run in (one, other))
    assert [row["step"] for row in rows] == [row["step"] for row in same] == list(range(len(rows)))
    for row, found in zip(rows, same, strict=True):
        number = row["step"]
        if number > 0 and any(row.get(name) != found.get(name) for name in SAMPLED):
            return False
        # The share of tokens whose entropy fell since they were sampled. At a step's first update the policy is the one
        # that sampled them: entropies changed by rounding alone, and its sign is not the same in two programs.
        row.pop("mask_share", None), found.pop("mask_share", None)
        assert found == pytest.approx(row, rel=2e-3, abs=1e-5)
    return True
