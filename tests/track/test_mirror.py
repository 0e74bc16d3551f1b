"""MLflow as a mirror of records that change: each point once, means that follow their seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policygrain.results.layout import StudyFolder
from policygrain.results.reader import StudyResults, run_summary
from policygrain.results.schema import write_record
from policygrain.study import load_study
from policygrain.study.runs import run_matrix
from policygrain.track.mirror import mirror

from ..support.made_up import make_up

ROOT = Path(__file__).parents[2]


def test_a_run_that_was_trained_again_replaces_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    study = load_study(ROOT / "studies" / "smoke.yaml")
    results = make_up(study, tmp_path / "smoke", {})
    late = StudyFolder(results).run("tepo", 1)
    late.summary.rename(late.path / "not yet")
    found_runs = mirror(StudyResults(results))
    assert set(found_runs.runs) == set(run_matrix(study).arms) and found_runs.uri == f"sqlite:///{tmp_path}/mlflow.db"
    store = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    found = store.get_experiment_by_name("smoke")
    assert found is not None

    def runs() -> dict[str, mlflow.entities.Run]:
        return {r.info.run_name: r for r in store.search_runs([found.experiment_id])}

    def curve(name: str, metric: str) -> list[tuple[int, float]]:
        return [(m.step, m.value) for m in store.get_metric_history(runs()[name].info.run_id, metric)]

    # One seed so far: the method's curve is that seed's. In the made-up records seed s ends with 0.5 + 0.1 s.
    assert "tepo seed 1" not in runs() and runs()["tepo"].data.tags["seeds"] == "1"
    assert curve("tepo", "validation_accuracy") == [(0, 0.0), (2, 0.5 * 2 / 3), (3, 0.5)]
    assert curve("tepo seed 0", "by_tokens/sampled_accuracy") == [(100, 0.0), (200, 0.1), (300, 0.2)]
    untouched = runs()["tepo seed 0"].info.run_id

    # The second seed comes in, and a run is trained again with another result.
    (late.path / "not yet").rename(late.summary)
    again = StudyFolder(results).run("grpo", 0)
    write_record(again.summary, run_summary(again).model_copy(update={"key": "of other settings"}))
    again.metrics.write_text(again.metrics.read_text().replace("0.5}", "0.9}").replace('0.5, "total', '0.9, "total'))
    mirror(StudyResults(results))
    assert curve("tepo", "validation_accuracy") == [
        (0, 0.0),
        (2, pytest.approx(0.55 * 2 / 3)),
        (3, pytest.approx(0.55)),
    ]
    assert runs()["tepo seed 0"].info.run_id == untouched
    assert runs()["tepo"].data.tags["seeds"] == "2"
    assert curve("grpo seed 0", "validation_accuracy")[1:] == [(2, pytest.approx(1 / 3)), (3, 0.9)]
    assert curve("grpo", "validation_accuracy")[-1] == (3, pytest.approx((0.9 + 0.6) / 2))
    names = [r.info.run_name for r in store.search_runs([found.experiment_id])]
    assert len(names) == len(set(names))


REQUESTS = ("create_run", "log_batch", "set_tag", "log_artifact", "log_artifacts", "log_table", "set_terminated")


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.slow
def test_a_mirror_that_is_killed_after_any_request_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after each of its requests in turn, by restarting until none is left."""
    import mlflow

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    study = load_study(ROOT / "studies" / "smoke.yaml")
    results = StudyResults(make_up(study, tmp_path / "smoke", {}))
    killed_after: set[tuple[str, ...]] = set()

    def killed_once(name: str) -> Any:
        request = getattr(mlflow.MlflowClient, name)

        def carried_out(client: Any, *args: Any, **more: Any) -> Any:
            answer = request(client, *args, **more)
            this = (name, *args[: 2 if name == "set_tag" else 1], *sorted(more))
            if this not in killed_after:
                killed_after.add(this)
                raise Killed
            return answer

        return carried_out

    for name in REQUESTS:
        monkeypatch.setattr(mlflow.MlflowClient, name, killed_once(name))
    starts = 1
    while True:
        try:
            mirror(results)
            break
        except Killed:
            starts += 1
    assert starts == len(killed_after) + 1 > 20, killed_after
    store = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = store.get_experiment_by_name("smoke")
    assert experiment is not None
    runs = {run.info.run_name: run for run in store.search_runs([experiment.experiment_id])}
    matrix = run_matrix(study)
    assert set(runs) == {"figures and tables", *matrix.arms, *(f"{run.arm} seed {run.seed}" for run in matrix.runs)}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    curve = store.get_metric_history(runs["grpo seed 0"].info.run_id, "validation_accuracy")
    assert [(m.step, m.value) for m in curve] == [(0, 0.0), (2, pytest.approx(1 / 3)), (3, 0.5)]
