"""The ledger of the package as if no claim were withdrawn, for tests of how claims are decided."""

from __future__ import annotations

import pytest

from policygrain.analysis.ledger import Claim, load_claims


def whole_ledger() -> dict[str, Claim]:
    """All claims, each to be tested."""
    return {name: claim.model_copy(update={"withdrawn": ""}) for name, claim in load_claims().items()}


@pytest.fixture
def nothing_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every claim is tested."""
    monkeypatch.setattr("policygrain.analysis.claims.load_claims", whole_ledger)
    monkeypatch.setattr("policygrain.analysis.planned.tested_claims", whole_ledger)
