"""Controls: four arms whose outcome is known, and what is said where one comes out otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from policygrain.analysis.controls import Control, controls
from policygrain.analysis.wording import claims_text, controls_status, controls_text, controls_warning
from policygrain.cli import main
from policygrain.figures.tables import claims as table
from policygrain.results import StudyResults

from .records import Curve, study_of, write

ARMS = {
    "dapo": "baseline",
    "dapo+sampling_seed=1": "other_seeds",
    "dapo+shuffle_rewards=True": "shuffled_rewards",
    "dapo+learning_rate=0.0": "zero_learning_rate",
    "poor_clip": "worse",
}
CHANGES = {
    "methods": {"poor_clip": {"base": "dapo", "clip": {"low": 1e-5, "high": 1e-5}}},
    "experiments": {"headline": {"methods": ["grpo", "dapo"]}},
    "sanity_checks": {"method": "dapo", "worse": "poor_clip"},
}


def sound(**points: float) -> Curve:
    """DAPO rises from 30 to 50%, with a seed's luck of 0.2 points; ``points`` move a role's curve after its start."""

    def curve(arm: str, seed: int) -> list[float]:
        role = ARMS.get(arm, "grpo")
        luck = np.random.default_rng([seed, len(role)]).normal(0, 0.002)
        rise = {"shuffled_rewards": 0.0, "zero_learning_rate": 0.0, "worse": 0.08}.get(role, 0.2)
        luck = 0.0 if role == "zero_learning_rate" else luck
        return [0.3] + [0.3 + rise + luck + points.get(role, 0.0) / 100] * 4

    return curve


def judged(folder: Path, **points: float) -> dict[str, Control]:
    return {c.role: c for c in controls(write(study_of(8, **CHANGES), folder, sound(**points)))}


def test_a_sound_study_passes(tmp_path: Path) -> None:
    """The area of four steps of which the first is half as high: 20 points · 3.5 / 4; the worse method has 12 less.

    The margin is a quarter of these 17.5 points.
    """
    found = judged(tmp_path)
    assert controls_status(list(found.values())) == "passed" and controls_warning(list(found.values())) == ""
    assert list(found) == ["other_seeds", "shuffled_rewards", "zero_learning_rate", "worse"]
    assert found["worse"].difference.mean == pytest.approx(12 * 3.5 / 4, abs=0.3)
    assert found["shuffled_rewards"].difference.mean == pytest.approx(0, abs=0.3)
    assert found["zero_learning_rate"].difference.mean == 0 and found["zero_learning_rate"].difference.n == 8
    assert controls_text(list(found.values())).count("passed") == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "points", "said"),
    [
        ("other_seeds", 9.0, "beyond 4.4 points"),
        ("other_seeds", -9.0, "beyond 4.4 points"),
        ("shuffled_rewards", 9.0, "beyond 4.4 points"),
        ("zero_learning_rate", 1e-6, "validation accuracy changed"),
        ("worse", 12.0, "not shown"),
    ],
)
def test_a_control_that_comes_out_otherwise_fails(role: str, points: float, said: str, tmp_path: Path) -> None:
    found = judged(tmp_path, **{role: points})
    assert [c.role for c in found.values() if c.outcome == "failed"] == [role] and found[role].result == said
    assert controls_status(list(found.values())) == f"failed: {role}"


def test_what_does_not_learn_may_unlearn_and_small_differences_are_no_alarm(tmp_path: Path) -> None:
    found = judged(tmp_path, shuffled_rewards=-10.0, other_seeds=1.0)
    assert {c.outcome for c in found.values()} == {"passed"}


def test_too_few_seeds_are_no_pass_and_no_alarm(tmp_path: Path) -> None:
    """Differences of 8 and −6 points between sampling seeds show neither that there is none nor that there is one."""

    def curve(arm: str, seed: int) -> list[float]:
        heights = sound()(arm, seed)
        noise = (0.08, -0.06)[seed] if ARMS.get(arm) == "other_seeds" else 0.0
        return [heights[0], *(h + noise for h in heights[1:])]

    found = controls(write(study_of(2, **CHANGES), tmp_path, curve))
    assert found[0].outcome == "inconclusive" and found[0].result == "too few seeds to tell whether within 4.4 points"
    assert controls_warning(found) == ""
    assert "sanity check other_seeds: inconclusive" in controls_text(found)
    assert controls_status(found) == "inconclusive: other_seeds"


def test_where_the_method_gains_nothing_no_effect_is_small(tmp_path: Path) -> None:
    flat = {role: -20.0 for role in ("baseline", "other_seeds")}
    found = judged(tmp_path, **flat)
    assert {found[role].outcome for role in ("other_seeds", "shuffled_rewards")} == {"inconclusive"}


def test_alarms_are_a_family_of_their_own(tmp_path: Path) -> None:
    """Two tests could call a sound study unsound; the larger of their p-values counts once, the smaller twice."""
    alone = judged(tmp_path / "one", other_seeds=5.1)["other_seeds"]
    both = judged(tmp_path / "two", other_seeds=5.1, shuffled_rewards=20.0)["other_seeds"]
    assert alone.p == pytest.approx(2 * both.p)


def test_without_records_or_without_controls(tmp_path: Path) -> None:
    results = write(study_of(2, **CHANGES), tmp_path / "some", sound())
    for path in results.folder.run("poor_clip", 0).path.parent.rglob("*.json*"):
        path.unlink()
    found = {c.role: c for c in controls(StudyResults(results.folder.path))}
    assert found["worse"].outcome == "failed" and found["worse"].result.startswith("no records: no run of 'poor_clip'")
    none = controls(write(study_of(2), tmp_path / "none", sound()))
    assert none == [] and controls_status(none) == "none" and controls_text(none) == ""


def test_every_output_of_claims_begins_with_a_control_that_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(study_of(3, **CHANGES), tmp_path, sound(shuffled_rewards=20.0)).folder.path
    begins = (
        "A sanity check of this study failed: shuffled_rewards (shuffled rewards do not raise accuracy; "
        "measured: beyond 4.4 points)"
    )
    for option in ([], ["--brief"]):
        assert main(["claims", str(folder), *option]) == 0
        assert " ".join(capsys.readouterr().out.split()).startswith(begins)
    assert table(StudyResults(folder))[1].startswith(f"**{begins}")
    assert main(["claims", str(folder), "--json"]) == 0
    assert {entry["controls"] for entry in json.loads(capsys.readouterr().out)} == {"failed: shuffled_rewards"}
    assert not claims_text([], []).startswith("A sanity check")
