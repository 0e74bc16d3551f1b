"""The rule that chooses clip ranges, on made-up learning curves."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from policygrain.errors import UserError
from policygrain.results import StudyResults
from policygrain_lab.cli import main
from policygrain_lab.ranges import choose_ranges
from tests.analysis import records

RANGES = {"narrow": (0.05, 0.07), "middle": (0.1, 0.14), "wide": (0.2, 0.28)}
ALL = tuple(RANGES)
Heights = Mapping[str, float]  # method, with `+off_policy_steps=…` or without it → height of its learning curve


def study_of(folder: Path, heights: Heights, **ratios: tuple[str, ...]) -> StudyResults:
    """Records of two seeds on-policy and with rollouts 2 steps old, at flat heights (30% by default).

    Seed 1 is a point higher than seed 0.
    """
    grains = {name: {"base": "dapo", "ratio": name, "sampler": {"dynamic": False}} for name in ratios}
    candidates = {
        f"{ratio}_{name}": {"base": ratio, "clip": dict(zip(("low", "high"), RANGES[name], strict=True))}
        for ratio, names in ratios.items()
        for name in names
    }
    experiment = {"methods": list(candidates), "vary": {"off_policy_steps": [0, 2]}, "evaluate": False}
    study = records.study_of(2, methods={**grains, **candidates}, experiments={"ranges": experiment})

    def curve(arm: str, seed: int) -> list[float]:
        return [heights.get(arm, heights.get(arm.split("+", maxsplit=1)[0], 0.3)) + 0.01 * seed] * 4

    return records.write(study, folder, curve)


def test_the_largest_mean_area_over_seeds_and_regimes_wins(tmp_path):
    """`wide` is best on-policy, `middle` on average of both regimes; sequences have another best range, at an end."""
    heights = {
        "token_middle": 0.4,
        "token_wide": 0.45,
        "token_wide+off_policy_steps=2": 0.3,
        "sequence_narrow": 0.32,
        "sequence_wide+off_policy_steps=2": 0.5,
    }
    found = choose_ranges(study_of(tmp_path, heights, token=ALL, sequence=ALL))
    assert found["chosen"] == {"token": {"low": 0.1, "high": 0.14}, "sequence": {"low": 0.2, "high": 0.28}}
    assert found["seeds"] == [0, 1] and found["extend"] == ["sequence"]
    wide = found["candidates"]["token"][2]
    assert wide["areas"] == {"off_policy_steps 0": {"0": 45.0, "1": 46.0}, "off_policy_steps 2": {"0": 30.0, "1": 31.0}}
    assert wide["mean"] == pytest.approx(38.0)


def test_a_study_without_candidates_is_refused(tmp_path):
    results = records.write(records.study_of(2), tmp_path, lambda arm, seed: [0.3] * 4)
    with pytest.raises(UserError, match=r"no experiment named 'ranges', see lab/research/studies/phase-ranges\.yaml"):
        choose_ranges(results)


def test_candidates_have_the_same_seeds_and_different_ranges(tmp_path):
    found = study_of(tmp_path, {}, token=ALL)
    same = found.study.methods | {"token_wide": replace(found.study.methods["token_narrow"], name="token_wide")}
    twice = StudyResults(tmp_path, found.study.model_copy(update={"methods": same}))
    with pytest.raises(UserError, match=r"token_narrow and token_wide have the same ratio and range"):
        choose_ranges(twice)
    found.folder.run("token_wide", 1).summary.unlink()
    with pytest.raises(UserError, match="not all ranges of the token ratio have been trained with the same seeds"):
        choose_ranges(StudyResults(tmp_path))


def test_the_command_prints_all_candidates_and_marks_the_chosen(tmp_path, capsys):
    study_of(tmp_path / "ranges", {"token_wide": 0.45}, token=ALL)
    assert main(["ranges", str(tmp_path / "ranges"), "--out", str(tmp_path / "ranges.json")]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.startswith("token")]
    assert [row[1:4] for row in rows] == [["0.05", "/", "0.07"], ["0.1", "/", "0.14"], ["0.2", "/", "0.28"]]
    assert [line.endswith("chosen") for line in lines if line.startswith("token")] == [False, False, True]
    assert "45.5" in lines[2] and "at an end of the list of: token" in lines[-1]
    assert json.loads((tmp_path / "ranges.json").read_text()) == choose_ranges(StudyResults(tmp_path / "ranges"))
    assert main(["ranges", str(tmp_path / "nothing")]) == 2
