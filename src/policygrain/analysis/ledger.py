"""The ledger as data (`claims.yaml`): the claims of the papers, and the comparisons that test them."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, PositiveFloat, ValidationError, model_validator

from ..errors import UserError
from ..results.measurements import EstimatorRow
from .statistics import SEEDS, STARTS
from .verdicts import Side

POINTS, LOG_RATIO = "points", "log2 ratio"
Statistic = Literal["accuracy", "benchmarks", "drop", "steps", "tokens", "estimator", "round"]
EVALUATED = ("accuracy", "benchmarks")  # of final models
COSTS = ("steps", "tokens")
MEASURED_ONCE = ("estimator", "round")  # per initial model
BEFORE = "before"  # in place of a method: the policy before its round
ROUND_UNITS = {"reward": POINTS, "entropy": "nats"}
COLUMNS = {
    "estimator": [name for name in EstimatorRow.model_fields if name not in ("steps", "updates", "estimator")],
    "round": list(ROUND_UNITS),
}


class Published(BaseModel):
    """A published size of an effect: a number without a sign, in the comparison's unit, and its place in the paper."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    size: PositiveFloat
    where: str


class Comparison(BaseModel):
    """A comparison of two arms: a statistic of arm ``of`` against that of arm ``than``, one number per replicate."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    statistic: Statistic
    of: str
    than: str
    claimed: Side
    metric: str = ""
    log: bool = False
    updates: int | None = None
    published: Published | None = None

    @property
    def unit(self) -> str:
        """The unit of the effect, its interval and the published size."""
        return unit_of(self.statistic, self.metric, self.log)

    @property
    def replicates(self) -> str:
        """The unit of replication: training seeds or initial models."""
        return STARTS if self.statistic in MEASURED_ONCE else SEEDS

    @property
    def size(self) -> float | None:
        """The published size, without a sign; None: the paper gives none."""
        return self.published.size if self.published else None

    @model_validator(mode="before")
    @classmethod
    def _number_with_unit(cls, data: Any) -> Any:
        """Reads `size: 1.6 points`."""
        if not isinstance(data, dict) or "size" not in (published := data.get("published") or {}):
            return data
        unit = unit_of(str(data.get("statistic")), str(data.get("metric", "")), bool(data.get("log")))
        match = re.fullmatch(r"([-+.\deE]+) (.+)", str(published["size"]).strip())
        if not match or match[2] != unit:
            raise ValueError(f"published.size: {published['size']!r}; it is a number and the unit {unit!r}")
        return data | {"published": published | {"size": match[1]}}

    @model_validator(mode="after")
    def _keys_of_its_statistic(self) -> Comparison:
        columns = COLUMNS.get(self.statistic, [])
        metric = self.metric or ("reward" if self.statistic == "round" else "")
        if columns and metric not in columns:
            raise ValueError(f"metric: {self.statistic} has no {metric!r}; there are {', '.join(columns)}")
        for key, is_set in (("metric", self.metric), ("log", self.log), ("updates", self.updates is not None)):
            if is_set and not columns:
                raise ValueError(f"{key}: the statistic {self.statistic!r} has none; `estimator` and `round` have")
        if self.published is not None and self.claimed == "apart":
            raise ValueError("published: a size needs a direction, `claimed: above` or `below`")
        return self


class Claim(BaseModel):
    """A claim of a paper with the comparisons that test it, or the reason why none does."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    source: str  # the paper, and the table, figure or section
    text: str
    reading: str = ""
    excluded: str = ""
    comparisons: list[Comparison] = []

    @model_validator(mode="after")
    def _tested_or_excluded(self) -> Claim:
        if bool(self.comparisons) == bool(self.excluded):
            raise ValueError("a claim has either comparisons or, as `excluded`, the reason why it has none")
        return self


def unit_of(statistic: str, metric: str, log: bool) -> str:
    """The unit of a comparison's effect: points of percent, log2 of a ratio, or that of the metric."""
    if log or statistic in COSTS:
        return LOG_RATIO
    if statistic == "round":
        return ROUND_UNITS.get(metric or "reward", metric)
    if statistic == "benchmarks":
        return statistic
    return metric if statistic == "estimator" and metric != "clip_fraction" else POINTS


def load_claims(path: Path | None = None) -> dict[str, Claim]:
    """The claims that are tested, by name; ``path`` is by default the ledger of the package."""
    return {name: claim for name, claim in _all_claims(path).items() if not claim.excluded}


def excluded_claims() -> dict[str, Claim]:
    """The claims of the package that are not tested, with their reasons."""
    return {name: claim for name, claim in _all_claims(None).items() if claim.excluded}


def _all_claims(path: Path | None) -> dict[str, Claim]:
    where = path or resources.files(__package__).joinpath("claims.yaml")
    claims = {}
    for name, data in yaml.safe_load(where.read_text(encoding="utf-8")).items():
        try:
            claims[name] = Claim.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in (name, *first["loc"]))
            message = f"{key}: {first['msg'].removeprefix('Value error, ')} (rule 7 of docs/design.md)."
            raise UserError(f"{path or 'claims.yaml'}: {message}") from error
    return claims
