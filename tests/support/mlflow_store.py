"""What MLflow has of a study."""

from typing import Any


class Store:
    """Runs and metrics of an experiment."""

    def __init__(self, uri: str, study: str) -> None:
        import mlflow

        self.client = mlflow.MlflowClient(uri)
        experiment = self.client.get_experiment_by_name(study)
        assert experiment is not None
        self.experiment = experiment.experiment_id

    @property
    def runs(self) -> dict[str, Any]:
        """By name; no two have the same."""
        found = self.client.search_runs([self.experiment])
        runs = {str(run.info.run_name): run for run in found}
        assert len(runs) == len(found)
        return runs

    def curve(self, run: str, metric: str) -> list[tuple[int, float]]:
        """(step, value) as they were logged."""
        points = self.client.get_metric_history(self.runs[run].info.run_id, metric)
        return [(point.step, point.value) for point in points]
