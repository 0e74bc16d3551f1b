"""The claims of the papers (`claims.yaml`), and how a study decides them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict

from ..errors import UserError
from .statistics import Evidence, Side, Verdict, decide, holm, weigh


class Comparison(BaseModel):
    """A comparison of two arms: a statistic of arm ``of`` against that of arm ``than``, one number per seed."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    statistic: str
    of: str
    than: str
    claimed: Side
    metric: str = ""
    log: bool = False
    margin: float = 0.0


class Claim(BaseModel):
    """A claim of a paper, and the comparisons that test it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    source: str
    text: str
    reading: str = ""
    comparisons: list[Comparison]


class ClaimResult(NamedTuple):
    """A claim with its evidence and verdict; without the records for it, both are empty and ``missing`` says why."""

    name: str
    claim: Claim
    evidence: list[Evidence]
    corrected: list[float]  # p-values for the claim, after Holm's correction over all claims
    verdict: Verdict | None
    missing: str = ""


def load_claims() -> dict[str, Claim]:
    """All claims by name."""
    text = resources.files(__package__).joinpath("claims.yaml").read_text(encoding="utf-8")
    return {name: Claim.model_validate(data) for name, data in yaml.safe_load(text).items()}


def decide_claims(claims: dict[str, Claim], compare: Callable[[Comparison], list[float]]) -> list[ClaimResult]:
    """Decide every claim. A claim has no verdict if ``compare`` raises a UserError for one of its comparisons.

    ``compare`` returns the number of each seed.
    """
    found: dict[str, list[Evidence]] = {}
    missing: dict[str, str] = {}
    for name, claim in claims.items():
        try:
            found[name] = [weigh(compare(c), c.claimed, c.margin) for c in claim.comparisons]
        except UserError as error:
            missing[name] = str(error)
    flat = [(name, e) for name, evidence in found.items() for e in evidence]
    p_for, p_against = (holm([getattr(e, side) for _, e in flat]) for side in ("p_for", "p_against"))
    results = []
    for name, claim in claims.items():
        if name in missing:
            results.append(ClaimResult(name, claim, [], [], None, missing[name]))
            continue
        own = [i for i, (other, _) in enumerate(flat) if other == name]
        verdict = decide([p_for[i] for i in own], [p_against[i] for i in own])
        results.append(ClaimResult(name, claim, found[name], [p_for[i] for i in own], verdict))
    return results
