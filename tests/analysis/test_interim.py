"""Interim analyses: what is undecided, what is futile, which seeds are added, and what that costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policygrain.analysis.claims import ClaimResult, Finding, decide_claims, decide_study
from policygrain.analysis.comparisons import compare
from policygrain.analysis.interim import (
    Outlook,
    check_budget,
    interim,
    minutes_per_run,
    minutes_spent,
    next_round,
    outlook_of,
    seeds_to_add,
)
from policygrain.analysis.ledger import Claim, Comparison
from policygrain.analysis.statistics import SEEDS, STARTS
from policygrain.analysis.verdicts import PValues, Verdict
from policygrain.errors import UserError
from policygrain.results.reader import StudyResults, added_seeds
from policygrain.results.schema import write_record
from policygrain.study import Study

from ..support.ledger import nothing_withdrawn  # noqa: F401 (a fixture)
from .records import Curve, effects, study_of, write


def comparison(of: str, than: str, statistic: str = "curve") -> Comparison:
    return Comparison.model_validate({"statistic": statistic, "of": of, "than": than, "claimed": "above"})


def finding(
    effect: float, needed: int | None, verdict: Verdict = "undecided", n: int = 8, unit: str = SEEDS
) -> Finding:
    return Finding(effect, effect - 1, effect + 1, n, unit, PValues(1, 1, 1), verdict, needed)


def result(*pairs: tuple[Comparison, Finding]) -> ClaimResult:
    claim = Claim(source="s", text="t", comparisons=[c for c, _ in pairs])
    return ClaimResult("claim", claim, [f for _, f in pairs], "undecided")


pytestmark = pytest.mark.usefixtures("nothing_withdrawn")
SIX = {arm: list(range(8)) for arm in ("a", "b", "c", "d")}
EACH = {"a": 1.0, "b": 1.0, "c": 0.5, "d": 0.5}
AB, AC, CD = comparison("a", "b"), comparison("a", "c"), comparison("c", "d")


# ---- which seeds ----------------------------------------------------------------------------------------------------


def test_seeds_follow_the_highest_of_each_arm() -> None:
    assert seeds_to_add([AB], SIX, 2) == {"a": [8, 9], "b": [8, 9]}
    assert seeds_to_add([], SIX, 2) == {}


def test_an_arm_that_lags_behind_gets_the_seeds_that_it_lacks() -> None:
    seeds = SIX | {"a": list(range(10))}
    assert seeds_to_add([AB], seeds, 2) == {"a": [10, 11], "b": [8, 9, 10, 11]}
    # c is compared with a and d with c, so d ends with a's seed as well.
    assert seeds_to_add([AC, CD], seeds, 1) == {"a": [10], "c": [8, 9, 10], "d": [8, 9, 10]}
    assert seeds_to_add([AB, CD], seeds, 1)["d"] == [8], "no comparison links them to a"


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), max_size=5), st.data())
def test_arms_that_are_compared_end_with_the_same_seed(pairs: list[tuple[str, str]], data: st.DataObject) -> None:
    seeds = {arm: list(range(data.draw(st.integers(1, 6)))) for arm in "abcd"}
    pairs = [pair for pair in pairs if pair[0] != pair[1]]
    add = seeds_to_add([comparison(*pair) for pair in pairs], seeds, 2)
    after = {arm: seeds[arm] + more for arm, more in add.items()}
    assert set(add) == {arm for pair in pairs for arm in pair}
    assert all(after[one][-1] == after[two][-1] for one, two in pairs)
    assert all(
        len(more) >= 2 and own == list(range(len(own))) for own, more in zip(after.values(), add.values(), strict=True)
    )


# ---- what could decide a claim --------------------------------------------------------------------------------------


def test_one_comparison_against_a_claim_is_enough() -> None:
    """a − b needs 12 seeds for it, a − c 14 against it (6 more of two arms at 1 + ½ minutes): only the latter."""
    found = outlook_of(result((AB, finding(4.0, 12)), (AC, finding(1.0, 14))), SIX, EACH, 4)
    assert found.comparisons == [AC] and found.minutes == pytest.approx(6 * 1.5)
    assert found.text == "about 14 seeds would decide it, 9.0 minutes"


def test_of_two_against_it_the_cheaper_one_is_extended() -> None:
    found = outlook_of(result((AB, finding(1.0, 30)), (AC, finding(1.0, 14))), SIX, EACH, 4)
    assert found.comparisons == [AC]


def test_a_claim_is_supported_by_all_of_its_comparisons_only() -> None:
    """What is already supported needs no seed."""
    pairs = (AB, finding(4.0, 12)), (AC, finding(9.0, None, "supported")), (CD, finding(5.0, 10))
    found = outlook_of(result(*pairs), SIX, EACH, 4)
    assert found.comparisons == [AB, CD] and found.minutes == pytest.approx(4 * 2 + 4 * 1)


def test_runs_that_several_comparisons_share_are_counted_once() -> None:
    """Seeds 8 to 11 of a and b for the first, 8 to 13 of a and c for the second: 6 of a, 4 of b, 6 of c."""
    found = outlook_of(result((AB, finding(4.0, 12)), (AC, finding(5.0, 14))), SIX, EACH, 4)
    assert found.minutes == pytest.approx(6 * 1 + 4 * 1 + 6 * 0.5)


def test_start_models_are_planned() -> None:
    """An undecided round leaves only what speaks against the claim; alone it leaves nothing."""
    round_ = (comparison("x", "y", "round"), finding(1.2, 20, n=6, unit=STARTS))
    assert outlook_of(result(round_), SIX, EACH, 4).comparisons == []
    assert outlook_of(result(round_, (AB, finding(4.0, 12))), SIX, EACH, 4).comparisons == []
    assert outlook_of(result(round_, (AB, finding(0.0, 12))), SIX, EACH, 4).comparisons == [AB]


def test_a_round_takes_what_fits_the_cheapest_first() -> None:
    """Two more seeds of a and b are 4 minutes; c then adds 1, d another 1."""
    outlooks = [Outlook([CD], 9.0, ""), Outlook([AB], 5.0, ""), Outlook([AC], 7.0, "")]
    assert set(next_round(outlooks, SIX, EACH, 2, 6.0)) == {"a", "b", "c", "d"}
    assert set(next_round(outlooks, SIX, EACH, 2, 5.0)) == {"a", "b", "c"}
    assert set(next_round(outlooks, SIX, EACH, 2, 4.5)) == {"a", "b"}
    assert set(next_round(outlooks, SIX, EACH, 2, 3.5)) == {"a", "c"}, "a and b take 4 minutes, a and c 3"
    assert set(next_round(outlooks, SIX, EACH, 2, 2.5)) == {"c", "d"}
    assert next_round(outlooks, SIX, EACH, 2, 1.0) == {}


def test_an_unknown_number_of_seeds_is_not_affordable_and_one_seed_knows_nothing() -> None:
    assert outlook_of(result((AB, finding(2.0, None))), SIX, EACH, 4).minutes == pytest.approx(1000 * 2)
    single = outlook_of(result((AB, finding(2.0, None, n=1))), SIX, EACH, 4)
    assert single.comparisons == [AB] and single.minutes == pytest.approx(4 * 2)


# ---- whole studies --------------------------------------------------------------------------------------------------

ARMS = 8  # four methods with 2 and 16 updates per batch, at a minute a run: 8 seeds take 64


def sequential(**section: Any) -> Study:
    return study_of(8, sequential={"add": 2, "budget": "200 minutes"} | section)


def noisy(**points: float) -> Curve:
    """`effects` with a standard deviation of one point between the runs of an arm."""
    plain = effects(**points)

    def curve(arm: str, seed: int) -> list[float]:
        luck = np.random.default_rng([seed, *arm.encode()]).normal(0, 0.01)
        return [plain(arm, seed)[0], *(h + luck for h in plain(arm, seed)[1:])]

    return curve


def test_minutes_are_those_of_the_records(tmp_path: Path) -> None:
    """A run took 6 seconds and its evaluation 54."""
    results = write(sequential(), tmp_path, effects())
    assert minutes_spent(results) == pytest.approx(8 * ARMS)
    assert minutes_per_run(results) == {arm: pytest.approx(1) for arm in results.matrix.arms}


def test_nothing_is_added_when_all_that_has_records_is_decided(tmp_path: Path) -> None:
    """MPO is clearly worse than GRPO, TEPO too, and they converge no sooner."""
    found = interim(write(sequential(), tmp_path, effects(tepo=-9.0, mpo=-9.0)), 0)
    assert found.decided["mpo_beats_token_level"] == "not supported" and found.add == {}
    assert found.undecided["mpo_block_size"].startswith("no records: ")
    assert found.reason.startswith("No seeds are added: ") and found.minutes == pytest.approx(64)


def undecided(tmp_path: Path, **section: Any) -> StudyResults:
    """MPO is 5 points better than GRPO and 4 than DAPO at 4 updates; at 16 its accuracy is clearly better."""
    right = {"mpo+updates_per_batch=16": 11}
    points = {"mpo": 3.2, "tepo": -9.0, "grpo": 0.0}
    return write(sequential(**section), tmp_path, noisy(**points), right)


def test_seeds_are_added_to_the_arms_of_an_undecided_claim(tmp_path: Path) -> None:
    results = undecided(tmp_path)
    assert {r.name: r.verdict for r in decide_study(results)}["mpo_beats_token_level"] == "undecided"
    found = interim(results, 0)
    assert set(found.add) <= {"grpo", "dapo", "mpo"} and "mpo" in found.add
    assert all(seeds == [8, 9] for seeds in found.add.values())
    assert found.undecided["mpo_beats_token_level"].startswith("within the budget: about ")
    assert "tepo_best_average" in found.decided, "no seed is spent on what is decided"
    count = sum(map(len, found.add.values()))
    assert (
        found.reason
        == f"{count} runs of {len(found.add)} arms are added for 1 undecided claim, about {count}.0 minutes."
    )


@pytest.mark.parametrize(
    ("section", "reason", "why"),
    [
        ({"budget": "65 minutes"}, "more seeds do not decide them", "futile: about "),
        ({"max_rounds": 0}, "0 of at most 0 rounds have been added", "within the budget: "),
    ],
)
def test_no_seed_is_added_without_budget_or_rounds(
    section: dict[str, Any], reason: str, why: str, tmp_path: Path
) -> None:
    found = interim(undecided(tmp_path, **section), 0)
    assert found.add == {} and reason in found.reason
    assert found.undecided["mpo_beats_token_level"].startswith(why)


def test_findings_get_seeds_of_their_own_each_comparison_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question of two comparisons: TEPO is 9 points worse than DAPO, MPO about 2 better, which is the margin."""
    apart = [comparison(arm, "dapo").model_copy(update={"claimed": "apart"}) for arm in ("mpo", "tepo")]
    grain = {"grain": Claim(source="s", text="t", comparisons=apart)}
    monkeypatch.setattr(
        "policygrain.analysis.interim.findings",
        lambda results: decide_claims(grain, lambda c: compare(results, c), "sequential"),
    )
    results = write(sequential(ledgers=["findings"]), tmp_path, noisy(mpo=2.0, tepo=-9.0))
    found = interim(results, 0)
    curve = "grain: full runs, area under the learning curve"
    assert found.decided == {f"{curve}: tepo apart from dapo": "supported"}
    assert list(found.undecided) == [f"{curve}: mpo apart from dapo"]
    assert set(found.add) <= {"mpo", "dapo"}, "none for TEPO"
    both = interim(write(sequential(ledgers=["claims", "findings"]), tmp_path / "both", noisy(mpo=2.0, tepo=-9.0)), 0)
    assert both.undecided.items() >= found.undecided.items() and "mpo_beats_token_level" in {
        *both.undecided,
        *both.decided,
    }


def test_an_analysis_depends_on_the_records_of_its_rounds_alone(tmp_path: Path) -> None:
    """After a round, the first analysis is what it was, and no verdict is taken back."""
    results = undecided(tmp_path)
    first = interim(results, 0)
    write_record(results.folder.interim(0), first)
    later = write(results.study, tmp_path, noisy(mpo=3.2, tepo=-9.0), {"mpo+updates_per_batch=16": 11}, None, first.add)
    again = StudyResults(later.folder.path)
    assert added_seeds(again.interims) == first.add
    assert interim(again, 0) == first
    second = interim(StudyResults(later.folder.path), 1)
    assert second.minutes == first.minutes + sum(map(len, first.add.values()))
    assert first.decided.items() <= second.decided.items()
    assert all(seeds[0] == 10 for seeds in second.add.values())
    with pytest.raises(UserError, match="comes after 1, which is missing"):
        interim(StudyResults(later.folder.path), 2)


def test_a_study_that_adds_no_seeds_has_no_interim_analysis(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no `sequential`"):
        interim(write(study_of(2), tmp_path, effects()), 0)


def test_a_budget_below_what_is_planned_is_an_error_within_a_factor_of_two() -> None:
    study = study_of(8, sequential={"budget": "10 minutes"})
    check_budget(study, 19.9)
    check_budget(study_of(8), 1e9)
    with pytest.raises(UserError, match=r"sequential\.budget: 10 minutes, and the planned runs alone take about 21"):
        check_budget(study, 21.0)
