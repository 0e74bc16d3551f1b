"""One round by each method: paired, restored between methods, and the record."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policygrain.paths import DataFolder
from policygrain.study import Study
from policygrain_lab.measured.instrument import measure as measure_start
from policygrain_lab.measured.options import Rounds
from policygrain_lab.measured.records import RoundRow, RoundsRecord
from policygrain_lab.measured.rounds import Round, text
from tests.support.small import small_study

METHODS: dict[str, Any] = {
    "token": {"ratio": "token", "clip": None},
    "same": {"ratio": "token", "clip": None},
    "sequence": {"ratio": "sequence", "clip": None, "advantage": "dr_grpo"},
    "anchored": {"base": "token", "penalties": [{"name": "kl", "coefficient": 5.0}]},
}
STUDY = small_study(methods=METHODS)
SPEC = Rounds(reference="token", methods=tuple(METHODS), steps=(0, 1), updates=(1, 3), prompts_per_update=2, samples=2)


def measure(made: tuple[Path, Path], study: Study = STUDY, **changes: Any) -> RoundsRecord:
    return measure_start(Round, replace(SPEC, **changes), study, 0, str(made[1]), DataFolder(made[0]))


@pytest.fixture(scope="module")
def measured(made):
    return measure(made)


def by_method(record: RoundsRecord, method: str) -> list[dict[str, Any]]:
    return [row.model_dump(exclude={"method"}) for row in record.rows if row.method == method]


def test_the_record_is_complete(measured):
    assert [(r.steps, r.pool, r.method, r.updates) for r in measured.rows] == [
        (steps, pool, name, updates) for steps in (0, 1) for pool in (0, 1) for name in METHODS for updates in (1, 3)
    ]
    assert (measured.responses_per_update, measured.validation_responses) == (8, 20)
    assert set(measured.before) == {"0", "1"} and all(0 <= r.reward <= 1 for r in measured.rows)
    assert all(r.gradient_norm > 0 for r in measured.rows if r.updates == 3 and r.method == "anchored")


def test_the_same_method_by_another_name_has_the_same_round(measured):
    assert by_method(measured, "same") == by_method(measured, "token")
    assert by_method(measured, "sequence") != by_method(measured, "token")
    assert by_method(measured, "anchored") != by_method(measured, "token")


def test_entropies_are_of_the_same_states_for_all_methods(measured):
    """Before a round they are equal, after it they are the methods' own; rows within a round have none."""
    assert all(row.pool_entropy is None for row in measured.rows if row.updates != 3)
    ends = [row for row in measured.rows if row.updates == 3]
    for steps, pool in {(row.steps, row.pool) for row in ends}:
        rows = {row.method: row for row in ends if (row.steps, row.pool) == (steps, pool)}
        assert len({row.pool_entropy_before for row in rows.values()}) == 1
        after = {name: row.pool_entropy for name, row in rows.items()}
        assert after["same"] == after["token"] != rows["token"].pool_entropy_before
        assert after["anchored"] != after["token"]


def test_each_method_starts_from_the_same_policy(measured, made):
    turned = measure(made, methods=tuple(reversed(METHODS)))
    assert turned.before == measured.before
    assert all(by_method(turned, name) == by_method(measured, name) for name in METHODS)


def test_a_learning_rate_of_0_changes_nothing(made):
    found = measure(made, small_study(methods=METHODS, training={"learning_rate": 0.0}), steps=(0,), pools=1)
    assert all(row.reward == row.before for row in found.rows)
    assert {round(row.kl_old, 6) for row in found.rows} == {0.0}
    assert all(row.pool_entropy == pytest.approx(row.pool_entropy_before) for row in found.rows if row.updates == 3)


def test_differences_are_paired_over_pools():
    rest = {"steps": 4, "updates": 8, "before": 0.4, "clip_fraction": 0.0, "gradient_norm": 1.0}
    rest |= {"kl_old": 0.0, "entropy": 1.0}
    rewards = {"a": (0.5, 0.6, 0.7), "b": (0.6, 0.8, 0.7)}
    rows = [
        RoundRow(method=name, pool=pool, reward=reward, **rest)
        for name, values in rewards.items()
        for pool, reward in enumerate(values)
    ]
    facts = {"seed": 0, "settings": {}, "made_from": "", "commit": "", "seconds": 1.0, "reference": "a"}
    sizes = {"before": {"4": 0.4}, "responses_per_update": 8, "validation_responses": 9}
    record = RoundsRecord(**facts, **sizes, rows=rows)
    # Differences 0.1, 0.2, 0: mean 0.1, sd 0.1, and t of 2 degrees of freedom is 4.303.
    half = 100 * 4.302653 * 0.1 / 3**0.5
    shown = f"+10.0 [{10 - half:+.1f}, {10 + half:+.1f}]"
    table = "\n".join(text(record))
    assert re.search(rf"^b +70\.0 +{re.escape(shown)} +0\.00% +1\.00$", table, flags=re.M)
    assert re.search(r"^a +60\.0 +reference ", table, flags=re.M)
    assert "4 steps: 40.0% before; mean over 3 pools" in table
