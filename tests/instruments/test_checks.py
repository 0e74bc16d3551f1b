"""Wrong sections `estimators` and `rounds` end in a message before anything is computed."""

from __future__ import annotations

from typing import Any

import pytest

from policygrain.errors import UserError
from policygrain.study.checks import check_instruments, check_prompts

from ..support.small import small_study

GOOD: dict[str, Any] = {"reference": "dapo", "methods": ["dapo", "tepo"]}


@pytest.mark.parametrize("section", ["estimators", "rounds"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["dapo", "tepo", "dapo"]}, r"{}\.methods: 'dapo' is there twice"),
        ({"methods": ["dapo", "teppo"]}, r"{}\.methods: no method is called 'teppo'\. Did you mean 'tepo'"),
        ({"reference": "tepo", "methods": ["dapo"]}, r"{}\.reference: 'tepo' is not one of {}\.methods"),
        ({"methods": ["dapo", "heads"]}, r"{}\.methods: 'heads' needs prediction heads"),
        ({"methods": ["dapo", "a3po"]}, r"{}\.methods: 'a3po' needs the age of rollouts"),
        ({"updates": [4, 4]}, r"{}\.updates: 4 is there twice"),
        ({"steps": [1, 2, 1]}, r"{}\.steps: 1 is there twice"),
    ],
)
def test_wrong_sections(section: str, changes: dict[str, Any], message: str) -> None:
    heads = {"base": "mpo", "ratio": {"future": "mtp_heads"}}
    with pytest.raises(UserError, match=message.replace("{}", section)):
        small_study(**{section: GOOD | changes}, methods={"heads": heads})


def test_sections_that_are_right_or_missing_pass() -> None:
    check_instruments(small_study())
    check_instruments(small_study(estimators=GOOD, rounds=GOOD))


def test_numbers_that_no_measurement_is_possible_with() -> None:
    for key in ("batches", "true_prompts"):
        with pytest.raises(UserError, match=rf"estimators\.{key}: .*greater than or equal to 3"):
            check_instruments(small_study(estimators=GOOD | {key: 2}))
    with pytest.raises(UserError, match="17 updates of a batch of 16"):
        check_instruments(small_study(rounds=GOOD, training={"updates_per_batch": 17}))


def test_more_prompts_than_there_are() -> None:
    study = small_study(estimators=GOOD | {"batches": 10}, rounds=GOOD)
    assert study.estimators is not None and study.rounds is not None
    with pytest.raises(UserError, match=r"estimators\.true_prompts: needs 400 prompts, and there are 200 training"):
        check_prompts("estimators", study.estimators, 200)
    with pytest.raises(UserError, match=r"rounds\.updates: needs 48 prompts, and there are 40"):
        check_prompts("rounds", study.rounds, 40)
    check_prompts("rounds", study.rounds, 48)
