"""The view of a study in the MLflow UI: learning curves of all runs, a curve per method.

By itself MLflow opens with a chart for each metric that has a prefix, such as the single points of `test/`, and with
ten runs. A shared view is a tag of the experiment, named in the address; so is this one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from .points import HEADLINE

if TYPE_CHECKING:
    from mlflow import MlflowClient

TAG = "mlflow.sharedViewState."
FIRST = ("validation_accuracy", *(name for name in HEADLINE if name != "validation_accuracy"))
CURVES, SCORES, OTHERS = "Learning curves", "test", "Model metrics"  # MLflow's names of metrics with and without prefix


def share(client: MlflowClient, experiment: str, role: str) -> str:
    """Write the view of a study's runs to MLflow, and return the part of its address after the server's.

    ``role``: `seed` for the runs, grouped by arm, or `method` for the runs with the means over seeds.
    """
    key = f"policygrain-{role}"
    client.set_experiment_tag(experiment, f"{TAG}{key}", json.dumps(view(role), separators=(",", ":")))
    # Without `workflowType` MLflow would open its view of language-model traces, which is empty.
    query = {"workflowType": "machine_learning", "compareRunsMode": "CHART", "viewStateShareKey": key}
    return f"/#/experiments/{experiment}/runs?{urlencode(query)}"


def view(role: str) -> dict[str, Any]:
    """The state of MLflow's page of runs, as far as it differs from its defaults."""
    by_arm = {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": "arm"}]}
    return {
        "searchFilter": f'tags."grain.role" = "{role}"',
        "runsHiddenMode": "SHOW_ALL",
        "groupBy": by_arm if role == "seed" else None,
        "isAccordionReordered": True,  # the sections stay in this order
        "compareRunSections": [_section(name) for name in (CURVES, SCORES, *([OTHERS] if role == "seed" else []))],
        "compareRunCharts": [_chart(name) for name in FIRST],
    }


def _section(name: str) -> dict[str, Any]:
    return {"uuid": name, "name": name, "display": True, "isReordered": True, "deleted": False, "isGenerated": True}


def _chart(metric: str) -> dict[str, Any]:
    return {
        "type": "LINE",
        "uuid": metric,
        "metricKey": metric,
        "metricSectionId": CURVES,
        "deleted": False,
        "isGenerated": True,
        "lineSmoothness": 0,
        "scaleType": "linear",
        "xAxisKey": "step",
        "xAxisScaleType": "linear",
        "selectedXAxisMetricKey": "",
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
        "range": {},
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "ignoreOutliers": False,
    }
