"""The rule that chooses clip bands, on made-up learning curves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from policygrain.analysis.bands import choose_bands
from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.methods import method
from policygrain.results.reader import StudyResults
from policygrain.study import load_study

from ..conftest import ROOT
from . import records

BANDS = {"narrow": (0.05, 0.07), "middle": (0.1, 0.14), "wide": (0.2, 0.28)}
Heights = Mapping[str, float]  # method, with `+updates_per_batch=…` or without it → height of its learning curve


def methods_of(ratios: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    return {
        f"{ratio}_{name}": {"base": ratio, "clip": dict(zip(("low", "high"), BANDS[name], strict=True))}
        for ratio, names in ratios.items()
        for name in names
    }


def study_of(folder: Path, heights: Heights, **ratios: tuple[str, ...]) -> StudyResults:
    """Records of two seeds with 2 (the study's own number) and 16 updates per batch, at flat heights (30% by default).

    Seed 1 is a point higher than seed 0.
    """
    grains = {name: {"base": "dapo", "ratio": name, "sampler": {"dynamic": False}} for name in ratios}
    candidates = methods_of(ratios)
    experiment = {"methods": list(candidates), "vary": {"updates_per_batch": [2, 16]}, "evaluate": False}
    study = records.study_of(2, methods={**grains, **candidates}, experiments={"bands": experiment})

    def curve(arm: str, seed: int) -> list[float]:
        return [heights.get(arm, heights.get(arm.split("+", maxsplit=1)[0], 0.3)) + 0.01 * seed] * 4

    return records.write(study, folder, curve)


ALL = tuple(BANDS)


def test_the_largest_mean_area_over_seeds_and_updates_wins(tmp_path: Path) -> None:
    """`wide` is best at 2 updates, `middle` on average of both numbers; sequences have another best band."""
    heights = {
        "token_middle": 0.4,
        "token_wide": 0.45,
        "token_wide+updates_per_batch=16": 0.3,
        "sequence_narrow": 0.32,
        "sequence_wide+updates_per_batch=16": 0.5,
    }
    found = choose_bands(study_of(tmp_path, heights, token=ALL, sequence=ALL))
    assert found["chosen"] == {"token": {"low": 0.1, "high": 0.14}, "sequence": {"low": 0.2, "high": 0.28}}
    assert found["seeds"] == [0, 1]
    wide = found["candidates"]["token"][2]
    assert wide["areas"] == {"2": {"0": 45.0, "1": 46.0}, "16": {"0": 30.0, "1": 31.0}}
    assert wide["mean"] == pytest.approx(38.0)


@pytest.mark.parametrize(("behind", "chosen"), [(0.0, 0.05), (0.0009, 0.05), (0.0011, 0.1)])
def test_of_bands_within_a_tenth_of_a_point_the_narrowest_is_chosen(
    behind: float, chosen: float, tmp_path: Path
) -> None:
    heights = {"token_narrow": 0.4 - behind, "token_middle": 0.4, "token_wide": 0.4}
    found = choose_bands(study_of(tmp_path, heights, token=ALL))
    assert found["chosen"]["token"]["low"] == chosen


def test_ratios_with_unequal_numbers_of_candidates_are_refused(tmp_path: Path) -> None:
    results = study_of(tmp_path, {}, token=ALL, sequence=ALL[:2])
    with pytest.raises(UserError, match=r"the same number of candidate bands \(token: 3, sequence: 2\)"):
        choose_bands(results)


def test_a_study_without_candidates_is_refused(tmp_path: Path) -> None:
    results = records.write(records.study_of(2), tmp_path, lambda arm, seed: [0.3] * 4)
    with pytest.raises(UserError, match=r"no experiment named 'bands', see studies/bands\.yaml"):
        choose_bands(results)


def test_the_published_candidates_are_those_of_the_study_of_bands(in_root: Path) -> None:
    """Else: `policygrain bands results/bands --out docs/bands.json`."""
    found = json.loads((in_root / "docs" / "bands.json").read_text())
    study = load_study(ROOT / "studies" / "bands.yaml")
    expected: dict[str, list[dict[str, float]]] = {}
    for name in study.experiments["bands"].methods:
        one = method(name, study.methods)
        ends = {key: one.clip.settings[key] for key in ("low", "high")}
        expected.setdefault(one.ratio.label, []).append(ends)
    published = {
        ratio: [{key: band[key] for key in ("low", "high")} for band in bands]
        for ratio, bands in found["candidates"].items()
    }
    assert published == expected and found["seeds"] == study.seeds
    assert {len(bands) for bands in expected.values()} == {4}


def test_the_command_prints_all_candidates_and_marks_the_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study_of(tmp_path / "bands", {"token_wide": 0.45}, token=ALL)
    assert main(["bands", str(tmp_path / "bands"), "--out", str(tmp_path / "bands.json")]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["ratio", "band", "area,", "points", "by", "updates", "per", "batch"]
    rows = [line.split() for line in lines if line.startswith("token")]
    assert [row[1:4] for row in rows] == [["0.05", "/", "0.07"], ["0.1", "/", "0.14"], ["0.2", "/", "0.28"]]
    assert [line.endswith("chosen") for line in lines if line.startswith("token")] == [False, False, True]
    assert "45.5" in lines[-1] and "2: 45.5" in lines[-1] and "16: 45.5" in lines[-1]
    assert json.loads((tmp_path / "bands.json").read_text()) == choose_bands(StudyResults(tmp_path / "bands"))
    assert main(["bands", str(tmp_path / "nothing")]) == 2
