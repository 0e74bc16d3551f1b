"""Every ratio on one batch, and the files that training leaves for a look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from policygrain.errors import UserError
from policygrain.figures.records import Records
from policygrain.files import read_json, read_json_lines
from policygrain.train.probe import RATIOS, Spread, probe

from ..support.small import make_start, small_study


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


def test_every_ratio_looks_at_the_same_batch(tmp_path: Path) -> None:
    data, start = make_start(tmp_path)
    study = small_study(probe={"prompts": 4, "updates": [0, 2]})
    probe(study, 0, str(start), data, tmp_path / "probe.json")
    rows = read_json(tmp_path / "probe.json")["rows"]
    assert [(row["updates"], row["ratio"]) for row in rows] == [(k, name) for k in (0, 2) for name in RATIOS]
    on_policy, off = rows[: len(RATIOS)], {row["ratio"]: row for row in rows[len(RATIOS) :]}
    for row in on_policy:
        assert row["ratio_mean"] == pytest.approx(1, abs=1e-5) and row["ratio_variance"] == pytest.approx(0, abs=1e-8)
    assert off["token"]["ratio_variance"] > off["sequence"]["ratio_variance"] > 0
    assert all(0 < row["effective_sample_share"] <= 1 and row["gradient_noise"] > 0 for row in off.values())


def test_a_start_model_that_solves_nothing_has_no_gradient_to_look_at(tmp_path: Path) -> None:
    data, start = make_start(tmp_path)
    study = small_study(probe={"prompts": 2, "updates": [0, 2]})
    train = data / "train.jsonl"
    train.write_text("".join(json.dumps(row | {"answer": "-7"}) + "\n" for row in read_json_lines(train)))
    probe(study, 0, str(start), data, tmp_path / "probe" / "seed0.json")
    assert read_json(tmp_path / "probe" / "seed0.json") == {"responses": 0, "rows": []}
    with pytest.raises(UserError, match="no group had unequal rewards"):
        _ = Records(study, tmp_path).probes
