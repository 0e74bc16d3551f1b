"""What a name means in other trainers: the page that says so is what their losses compute."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest

for trainer in ("verl", "areal", "trinity", "skyrl"):
    pytest.importorskip(
        trainer, reason=f"{trainer} is not installed here; `make test-peers` has an environment with it"
    )

from .same_name import RECORD, measure  # noqa: E402


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about versions of vLLM
        return measure()


def test_the_record_is_what_the_trainers_compute(measured: dict[str, Any]) -> None:
    """`python -m tests.integrations.same_name` writes it. ROLL's rows are compared where there is a clone of it."""
    recorded = json.loads(RECORD.read_text())
    here = measured["versions"]
    assert {"ROLL"} >= recorded["versions"].keys() - here.keys()
    assert {trainer: recorded["versions"][trainer] for trainer in here} == here
    rows = [row for row in recorded["names"] if row["trainer"] in here]
    for then, now in zip(rows, measured["names"], strict=True):
        assert {k: then[k] for k in ("trainer", "setting", "preset", "equals", "depends_on_division")} == {
            k: now[k] for k in ("trainer", "setting", "preset", "equals", "depends_on_division")
        }
        assert then["cosine"] == pytest.approx(now["cosine"], abs=2e-4)
        assert then["norm"] == pytest.approx(now["norm"], abs=2e-4)
        assert then["losses"] == pytest.approx(now["losses"], rel=1e-5)


def test_what_the_page_says_in_words(measured: dict[str, Any]) -> None:
    """Three trainers' gspo is a mean over tokens; TRL's cispo has every weight at most 0.2; geo_mean grows."""
    rows = {(row["trainer"], row["setting"]): row for row in measured["names"]}
    sequence = "importance_sampling_level=sequence"
    for key in (("TRL", sequence), ("verl", "loss_mode=gspo"), ("AReaL", sequence)):
        assert rows[key]["equals"] == "`gspo` with `token_mean` and the range 0.2 / 0.2"
    assert rows["Trinity-RFT", "policy_loss_fn=gspo"]["equals"] == "gspo"
    assert rows["Trinity-RFT", "policy_loss_fn=sapo"]["equals"] is None
    assert rows["TRL", "loss_type=cispo"]["equals"] == "`cispo` with every weight at most 0.2"
    one, two, four = rows["verl", "loss_mode=geo_mean"]["losses"]
    assert (two / one, four / one) == pytest.approx((2, 4), rel=0.1)
    divided = {(row["trainer"], row["setting"]) for row in measured["names"] if row["depends_on_division"]}
    kl_cov = {("verl", "loss_mode=kl_cov"), ("SkyRL", "policy_loss_type=kl_cov")}
    assert divided == {("verl", "loss_mode=geo_mean"), *kl_cov}
