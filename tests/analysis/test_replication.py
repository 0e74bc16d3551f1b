"""The claims of two studies side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from policygrain.analysis.claims import ClaimResult
from policygrain.analysis.ledger import load_claims
from policygrain.analysis.replication import ClaimPair, compare_claims, replication_text, shared_seeds
from policygrain.analysis.studies import compare_studies
from policygrain.analysis.verdicts import Verdict
from policygrain.cli import main

from ..support.ledger import nothing_withdrawn  # noqa: F401 (a fixture)
from .records import effects, study_of, write

TIE: Verdict = "no difference larger than the margin"


def result(verdict: Verdict | None) -> ClaimResult:
    name, claim = next(iter(load_claims().items()))
    return ClaimResult(name, claim, [], verdict)


@pytest.mark.parametrize(
    ("one", "two", "agreement"),
    [
        ("supported", "supported", "same"),
        ("not supported", "not supported", "same"),
        ("not supported", TIE, "both reject"),
        ("supported", "not supported", "contradicts"),
        ("supported", TIE, "contradicts"),
        ("supported", "undecided", "open"),
        (None, "supported", "open"),
        (None, None, "open"),
    ],
)
def test_agreement(one: Verdict | None, two: Verdict | None, agreement: str) -> None:
    assert ClaimPair("claim", result(one), result(two)).agreement == agreement
    assert ClaimPair("claim", result(two), result(one)).agreement == agreement


@pytest.mark.usefixtures("nothing_withdrawn")
def test_a_replication_with_other_seeds_is_compared_by_its_claims(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MPO is 9 points worse in both; TEPO 9 points worse in one and 9 better in the other, at 16 updates too."""
    right = {"tepo+updates_per_batch=16": 9}
    one = write(study_of(8), tmp_path / "one", effects(mpo=-9.0, tepo=-9.0))
    other = study_of(range(20, 28))
    two = write(other, tmp_path / "two", effects(mpo=-9.0, tepo=9.0), right)
    assert shared_seeds(one, two) == []
    found = {pair.name: pair for pair in compare_claims(one, two)}
    assert found["mpo_beats_token_level"].agreement == "same"
    assert found["tepo_best_average"].agreement == "contradicts" and found["mpo_block_size"].agreement == "open"
    folders = [str(results.folder.path) for results in (one, two)]
    assert main(["compare", *folders, "--out", str(tmp_path / "table.csv")]) == 0
    text = capsys.readouterr().out
    assert "No seed is in both studies" in text and "not independent" not in text
    assert (tmp_path / "table.csv").read_text().startswith("arm,benchmark,n,unit,change")
    counts = [
        sum(p.agreement == kind for p in found.values()) for kind in ("same", "both reject", "contradicts", "open")
    ]
    assert text.splitlines()[-1] == (
        "Of 10 claims: {} have the same verdict, {} are rejected by both with different verdicts, {} contradict, "
        "{} are open.".format(*counts)
    )
    line = next(line for line in text.splitlines() if "tepo_best_average" in line)
    assert line.split(maxsplit=2)[1:] == ["contradicts", "not supported | supported"]


def test_studies_with_common_seeds_are_said_not_to_be_independent(tmp_path: Path) -> None:
    one = write(study_of(3), tmp_path / "one", effects())
    two = write(study_of([2, 3]), tmp_path / "two", effects())
    assert "Both studies have seed 2: they are not independent" in replication_text(compare_claims(one, two), one, two)
    frame, text = compare_studies(one.folder.path, two.folder.path)
    assert len(frame) and text.index("accuracies are in both studies") < text.index("not independent")


def test_start_models_count_as_shared_seeds(tmp_path: Path) -> None:
    """No run of the first study has seed 3, but its estimators and rounds are measured on start model 3."""
    experiments = {"headline": {"methods": ["grpo"], "seeds": [5]}}
    one = write(study_of([2, 3], experiments=experiments), tmp_path / "one", effects())
    two = write(study_of([3]), tmp_path / "two", effects())
    assert shared_seeds(one, two) == [3]
