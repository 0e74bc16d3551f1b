"""The probe: every ratio on one batch, and the record that it writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from policygrain.errors import UserError
from policygrain.files import read_json_lines
from policygrain.results.layout import DataFolder, StudyFolder
from policygrain.results.reader import StudyResults
from policygrain.results.schema import ProbeRecord, read_record
from policygrain.study.fingerprint import Fingerprints
from policygrain.train.probe import RATIOS, Spread, probe

from ..support.small import small_study


def noise(shares: list[Tensor]) -> float:
    spread = Spread()
    for share in shares:
        spread.add([share[:1], share[1:]])
    return spread.noise()


def test_noise_is_the_variance_over_the_squared_norm() -> None:
    # Shares (1, 0) and (3, 0): mean 2, squared deviations 1 + 1, a variance of 2 · 2/1 = 4; their sum is 4, squared 16.
    assert noise([torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0])]) == pytest.approx(4 / 16)
    assert noise([torch.tensor([1.0, 2.0])] * 5) == pytest.approx(0, abs=1e-9)
    # Of many independent shares it is the variance of their sum: half as much for twice as many.
    shares = 1 + torch.randn(4000, 1, generator=torch.Generator().manual_seed(0))
    assert noise([*shares]) == pytest.approx(1 / 4000, rel=0.1)


def test_every_ratio_is_measured_on_the_same_batch(made: tuple[Path, Path], tmp_path: Path) -> None:
    data, start = made
    study = small_study(probe={"prompts": 4, "updates": [0, 2]})
    path = StudyFolder(tmp_path).probe(0)
    probe(study, 0, str(start), DataFolder(data), path)
    found = read_record(ProbeRecord, path, "")
    assert (found.seed, found.settings) == (0, Fingerprints(study).probe_settings(0))
    rows = found.rows
    assert [(row.updates, row.ratio) for row in rows] == [(k, name) for k in (0, 2) for name in RATIOS]
    on_policy, off = rows[: len(RATIOS)], {row.ratio: row for row in rows[len(RATIOS) :]}
    for row in on_policy:
        assert row.ratio_mean == pytest.approx(1, abs=1e-5) and row.ratio_variance == pytest.approx(0, abs=1e-8)
    assert off["token"].ratio_variance > off["sequence"].ratio_variance > 0
    assert all(0 < row.effective_sample_share <= 1 and row.gradient_noise > 0 for row in off.values())
    table = StudyResults(tmp_path, study).probes
    assert table["ratio"].tolist() == [*RATIOS] * 2 and set(table["seed"]) == {0}


def test_a_start_model_that_solves_nothing_has_no_gradient_to_measure(made: tuple[Path, Path], tmp_path: Path) -> None:
    study = small_study(probe={"prompts": 2, "updates": [0, 2]})
    data = DataFolder(shutil.copytree(made[0], tmp_path / "data"))
    lines = [json.dumps(row | {"answer": "-7"}) for row in read_json_lines(data.train)]
    data.train.write_text("\n".join(lines) + "\n")
    path = StudyFolder(tmp_path).probe(0)
    probe(study, 0, str(made[1]), data, path)
    found = read_record(ProbeRecord, path, "")
    assert (found.responses, found.rows) == (0, [])
    with pytest.raises(UserError, match="All groups had equal rewards"):
        _ = StudyResults(tmp_path, study).probes
