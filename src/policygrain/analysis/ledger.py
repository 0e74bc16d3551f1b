"""The ledger as data (`claims.yaml`): the claims of the papers, the comparisons that test them, and their margins."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from ..errors import UserError
from ..results.measured import EstimatorRow
from .statistics import SEEDS, STARTS
from .verdicts import Side

POINTS, LOG_RATIO = "points", "log2 ratio"
Statistic = Literal["accuracy", "curve", "steps", "tokens", "metric", "estimator", "round"]
# Statistic → default margin in points, and its reason.
DEFAULTS: dict[str, tuple[float, str]] = {
    "accuracy": (2.0, "Published gains are of this order (MPO over PPO 1.6 points)."),
    "curve": (2.0, "Published gains are of this order (MPO over PPO 1.6 points)."),
    "round": (1.0, "A third of what the token ratio gains in a round of the laptop study (3 points)."),
}
LARGEST_MARGINS = {POINTS: 50.0, LOG_RATIO: 5.0}
SMALLEST_MARGIN = 0.1  # points of accuracy; less is a share by mistake
MEASURED_ONCE = ("estimator", "round")  # per start model
COLUMNS = tuple(name for name in EstimatorRow.model_fields if name not in ("steps", "updates", "estimator"))


class Comparison(BaseModel):
    """A comparison of two arms: a statistic of arm ``of`` against that of arm ``than``, one number per replicate."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    statistic: Statistic
    of: str
    than: str
    claimed: Side
    metric: str = ""
    log: bool = False
    by: Literal["steps", "samples"] = "steps"
    updates: int | None = None
    margin: float
    margin_reason: str

    @property
    def unit(self) -> str:
        """The unit of the effect, its interval and the margin."""
        return unit_of(self.statistic, self.metric, self.log)

    @property
    def replicates(self) -> str:
        """The unit of replication: training seeds or start models."""
        return STARTS if self.statistic in MEASURED_ONCE else SEEDS

    @model_validator(mode="before")
    @classmethod
    def _margin(cls, data: Any) -> Any:
        """Reads `margin: 2 points`; what is in points of accuracy has a default."""
        if not isinstance(data, dict):
            return data
        statistic = str(data.get("statistic"))
        unit = unit_of(statistic, str(data.get("metric", "")), bool(data.get("log")))
        if statistic in DEFAULTS:
            data = dict(zip(("margin", "margin_reason"), DEFAULTS[statistic], strict=True)) | data
        if not isinstance(margin := data.get("margin"), str):
            return data
        found = re.fullmatch(r"([-+.\deE]+) (.+)", margin.strip())
        if not found or found[2] != unit:
            raise ValueError(f"margin: {margin!r}; it is a number and the unit {unit!r}")
        return data | {"margin": found[1]}

    @field_validator("margin")
    @classmethod
    def _positive(cls, margin: float) -> float:
        if not 0 < margin < np.inf:
            raise ValueError("a margin is the smallest difference that matters, so it is larger than 0")
        return margin

    @model_validator(mode="after")
    def _in_its_unit(self) -> Comparison:
        if self.margin > LARGEST_MARGINS.get(self.unit, np.inf):
            raise ValueError(f"margin: {self.margin:g} {self.unit} is larger than any difference; check its unit")
        if self.statistic in DEFAULTS and self.margin < SMALLEST_MARGIN:
            raise ValueError(f"margin: {self.margin:g}; margins of accuracy are in points, not shares: 2 is 2%")
        return self

    @model_validator(mode="after")
    def _keys_of_its_statistic(self) -> Comparison:
        if self.statistic in ("metric", "estimator") and not self.metric:
            raise ValueError(f"metric: the statistic {self.statistic!r} needs one")
        if self.statistic == "estimator" and self.metric not in COLUMNS:
            raise ValueError(f"metric: estimators have no {self.metric!r}; there are {', '.join(COLUMNS)}")
        if self.by != "steps" and self.statistic != "curve":
            raise ValueError(f"by: the statistic {self.statistic!r} has none; only `curve` has")
        if self.updates is not None and self.statistic not in MEASURED_ONCE:
            raise ValueError(f"updates: the statistic {self.statistic!r} has none; only `estimator` and `round` have")
        if self.log and self.statistic not in ("metric", "estimator"):
            raise ValueError(f"log: the statistic {self.statistic!r} has none; only `metric` and `estimator` have")
        return self


class Claim(BaseModel):
    """A claim of a paper, and the comparisons that test it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    source: str
    text: str
    reading: str = ""
    withdrawn: str = ""  # why its comparisons do not test it; it is then not tested, whatever the records are
    comparisons: list[Comparison]


def unit_of(statistic: str, metric: str, log: bool) -> str:
    """The unit of a comparison's effect: points of percent, log2 of a ratio, or that of the metric."""
    if log or statistic in ("steps", "tokens"):
        return LOG_RATIO
    return POINTS if statistic in DEFAULTS or metric == "clip_fraction" else metric


def tested_claims() -> dict[str, Claim]:
    """The claims of the package that are not withdrawn."""
    return {name: claim for name, claim in load_claims().items() if not claim.withdrawn}


def load_claims(path: Path | None = None) -> dict[str, Claim]:
    """All claims by name; ``path`` is by default the ledger of the package."""
    where = path or resources.files(__package__).joinpath("claims.yaml")
    claims = {}
    for name, data in yaml.safe_load(where.read_text(encoding="utf-8")).items():
        try:
            claims[name] = Claim.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in (name, *first["loc"]))
            raise UserError(f"{path or 'claims.yaml'}: {key}: {first['msg'].removeprefix('Value error, ')}.") from error
    return claims
