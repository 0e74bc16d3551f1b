"""Verdicts on claims, from numbers whose answer is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from policygrain.analysis.claim_text import claims_data
from policygrain.analysis.claims import decide_claims
from policygrain.analysis.comparisons import compare
from policygrain.analysis.ledger import Comparison, load_claims
from policygrain.analysis.statistics import Difference, student
from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.results.reader import StudyResults

from ..support.ledger import nothing_withdrawn, whole_ledger  # noqa: F401 (a fixture)
from . import records

ACCURACY = {"statistic": "accuracy", "of": "a", "than": "b", "claimed": "above"}
STEPS = {"statistic": "steps", "of": "a", "than": "b", "claimed": "below", "margin_reason": "a fifth"}


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of the laptop study with eight seeds: TEPO right on 9 of 12 problems, the other arms on 6."""
    return records.laptop(tmp_path_factory.mktemp("laptop")).folder.path


def test_the_ledger_is_whole_and_says_what_is_missing() -> None:
    claims = whole_ledger()
    assert len(claims) == 10
    assert {c.statistic for claim in claims.values() for c in claim.comparisons} == {
        "accuracy", "curve", "steps", "tokens", "metric", "estimator", "round"
    }  # fmt: skip
    assert all(c.margin == {"accuracy": 2, "curve": 2, "round": 1}.get(c.statistic, c.margin)
               for claim in claims.values() for c in claim.comparisons)  # fmt: skip

    def measured(c: Comparison, factor: float = 1.0) -> Difference:
        """Five on the claimed side, which is beyond every margin."""
        if "mpo" in (c.of, c.than) and c.statistic == "curve":
            raise UserError("no run of 'mpo'")
        sign = -1 if c.claimed == "below" else 1
        return student([factor * sign * v for v in (5.0, 5.01, 4.99)])

    decided = {r.name: r for r in decide_claims(claims, measured)}
    assert decided["tepo_best_average"].verdict is None, "one of its comparisons is with MPO"
    assert "no run of 'mpo'" in decided["mpo_beats_token_level"].missing
    assert decided["tepo_importance_sampling"].verdict == "supported"
    against = {r.name: r for r in decide_claims(claims, lambda c: measured(c, -1))}
    assert against["tepo_importance_sampling"].verdict == "not supported"
    assert against["tepo_clip_ratio"].verdict == "supported", "a difference in either direction"
    tied = {r.name: r for r in decide_claims(claims, lambda c: measured(c, 0.001))}
    assert tied["tepo_importance_sampling"].verdict == "no difference larger than the margin"
    assert tied["tepo_clip_ratio"].verdict == "no difference larger than the margin"


def test_one_seed_decides_nothing() -> None:
    found = decide_claims(whole_ledger(), lambda c: student([50.0]))
    assert {r.verdict for r in found} == {"undecided"}
    assert all(f.seeds_needed is None for r in found for f in r.findings)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ACCURACY | {"margin": 0}, "larger than 0"),
        (ACCURACY | {"margin": -2}, "larger than 0"),
        (ACCURACY | {"margin": "0 points"}, "larger than 0"),
        (ACCURACY | {"margin": "2 log2 ratio"}, "the unit 'points'"),
        (ACCURACY | {"margin": "2 percent"}, "the unit 'points'"),
        (ACCURACY | {"margin": "two points"}, "the unit 'points'"),
        (ACCURACY | {"margin": 0.02}, "in points, not shares"),
        (ACCURACY | {"margin": 200}, "larger than any difference"),
        (STEPS | {"margin": "0.32 points"}, "the unit 'log2 ratio'"),
        (STEPS | {"margin": 20}, "larger than any difference"),
        (STEPS, "Field required"),
        ({**STEPS, "margin": 1, "margin_reason": None}, "valid string"),
    ],
)
def test_a_margin_of_zero_or_of_another_unit_is_an_error(data: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump({"mine": {"source": "s", "text": "t", "comparisons": [data]}}))
    with pytest.raises(UserError, match=message) as error:
        load_claims(path)
    assert f"{path}: mine.comparisons.0" in str(error.value)


def test_the_margin_of_accuracy_is_two_points_by_default(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump({"mine": {"source": "s", "text": "t", "comparisons": [ACCURACY]}}))
    (comparison,) = load_claims(path)["mine"].comparisons
    assert (comparison.margin, comparison.unit) == (2.0, "points") and comparison.margin_reason


def test_every_margin_of_the_ledger_has_its_reason() -> None:
    for claim in load_claims().values():
        assert all(c.margin > 0 and c.margin_reason for c in claim.comparisons)


def test_accuracies_are_compared_on_the_seeds_that_both_arms_have(laptop: Path) -> None:
    found = compare(StudyResults(laptop), Comparison.model_validate(ACCURACY | {"of": "tepo", "than": "grpo"}))
    assert found.mean == pytest.approx(25) and found.values == pytest.approx((25.0,) * found.n)
    with pytest.raises(UserError, match="no evaluation of 'nobody'"):
        compare(StudyResults(laptop), Comparison.model_validate(ACCURACY | {"of": "nobody", "than": "grpo"}))


@pytest.mark.usefixtures("nothing_withdrawn")
def test_the_command_prints_the_ledger_and_its_json(laptop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", str(laptop)]) == 0
    text = capsys.readouterr().out
    assert "tepo_best_average: supported" in text and "margin 2 points: supported" in text
    assert text.splitlines()[-1].startswith("Of 10 claims: ") and "control worse: passed" in text
    assert main(["claims", str(laptop), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in data] == list(load_claims())
    best = data[0]
    assert {"name", "verdict", "effect", "interval", "n", "unit", "margin"} <= set(best)
    assert best["verdict"] == "supported" and best["margin"] == 2 and best["controls"] == "passed"
    accurate = best["comparisons"][4]
    assert accurate["of"] == "tepo+updates_per_batch=16" and accurate["effect"] == pytest.approx(25)
    assert (accurate["n"], accurate["unit"], accurate["instrument"]) == (8, "training seeds", "full runs")
    equal = next(entry for entry in data if entry["name"] == "mpo_block_size")
    assert equal["verdict"] == "no difference larger than the margin" and equal["unit"] == "start models"
    assert equal["interval"][0] < equal["effect"] < equal["interval"][1] and equal["n"] == 8
    assert main(["claims", str(laptop), "--brief"]) == 0
    brief = capsys.readouterr().out
    assert "supported: TEPO has the best average accuracy over the seven benchmarks. (tepo_best_average)" in brief
    counts = text.splitlines()[-1]
    assert f"\n{counts}\n" in brief and "control worse" not in brief, "controls are named where they failed"
    assert main(["claims", str(laptop / "nothing")]) == 2
    assert "give a study's results folder" in capsys.readouterr().err


def test_a_withdrawn_claim_is_not_tested_and_undecided(laptop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its comparisons are clearly on the claimed side, and count neither for it nor in the correction of the others."""
    beyond = student([5.0, 5.01, 4.99])
    claims = {name: whole_ledger()[name] for name in ("mpo_block_size", "mpo_beats_token_level")}
    withdrawn = {**claims, "mpo_beats_token_level": load_claims()["mpo_beats_token_level"]}
    tested, untested = decide_claims(withdrawn, lambda c: beyond)
    assert tested.verdict == "supported"
    assert (untested.verdict, untested.findings) == (None, [])
    assert untested.outcome == "undecided, comparison withdrawn" and untested.missing == untested.claim.withdrawn
    alone = decide_claims({"mpo_block_size": claims["mpo_block_size"]}, lambda c: beyond)[0]
    assert tested.findings == alone.findings, "corrected over its own comparisons alone"
    assert main(["claims", str(laptop), "--brief"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.endswith("(tepo_best_average)"))
    assert line.startswith("undecided, comparison withdrawn: TEPO has the best average accuracy")


def test_claims_without_records_are_null_in_json() -> None:
    def missing(_: Comparison) -> Difference:
        raise UserError("no run")

    entry = claims_data(decide_claims(whole_ledger(), missing))[0]
    assert (entry["verdict"], entry["effect"], entry["interval"], entry["n"]) == ("no records", None, None, 0)
    assert entry["missing"] == "no run" and entry["comparisons"] == []
    single = claims_data(decide_claims(whole_ledger(), lambda c: student([1.0])))[0]
    assert single["interval"] == [None, None] and json.loads(json.dumps(single, allow_nan=False))
