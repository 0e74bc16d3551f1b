"""Ranges from a user's own rollouts: arithmetic, trainers' column names, and what is said about mistakes."""

import json

import pytest
import torch

from policygrain_lab.cli import main
from policygrain_lab.rollouts.anatomy import checks
from policygrain_lab.rollouts.calibrate import measure, published_ranges
from policygrain_lab.rollouts.files import read_rollouts
from support import row
from tests.support.files import write_lines


@pytest.fixture
def many(tmp_path):
    """200 responses of 20 tokens, log-ratios of standard deviation 0.1, in groups of four of which one is right."""
    generator = torch.Generator().manual_seed(0)
    drift = 0.1 * torch.randn(200, 20, generator=generator, dtype=torch.float64)
    given = ({"reward": float(i % 4 == 0), "group": i // 4, "staleness": 1 + 15 * (i % 2)} for i in range(200))
    rows = [row(*d.tolist(), **more) for d, more in zip(drift, given, strict=True)]
    return write_lines(tmp_path / "rollouts.jsonl", rows)


def test_the_band_clips_the_wanted_share(many):
    rollouts = read_rollouts(many)
    log_ratio, sign = rollouts.batch.log_ratio, rollouts.batch.advantages.sign()
    found = {grain.name: grain for grain in measure(rollouts, share=0.04)}
    for name, of_grain in (("token", log_ratio), ("sequence", log_ratio.mean(1, keepdim=True))):
        low, high = found[name].clip_range
        values = of_grain.expand_as(log_ratio).exp()
        for clipped in ((values < 1 - low) & (sign < 0), (values > 1 + high) & (sign > 0)):
            assert float(clipped.double().mean()) == pytest.approx(0.02, abs=1e-9), name
    token, sequence = (next(g for g in measure(rollouts) if g.name == name) for name in ("token", "sequence"))
    assert sequence.clip_range[1] < token.clip_range[1] / 3, "a mean of twenty log-ratios spreads less"
    assert token.published.keys() == {"grpo", "grpo_clip_higher"} and token.published["grpo"][0] < 0.03
    assert set(token.by_staleness) == {"1", "16"}
    assert published_ranges("sequence") == {"gspo": (3e-4, 4e-4), "tepo_v1": (0.2, 0.28), "luspo": (2e-3, 2.5e-3)}


def test_the_command_prints_a_table_and_lines_to_paste(many, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert main(["calibrate", "--rollouts", str(many), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "200 responses, 4,000 tokens" in said and "GRPOConfig(epsilon=" in said and "actor.clip_ratio_low=" in said
    grains = json.loads(out.read_text())["grains"]
    assert list(grains) == ["token", "block", "prefix", "sequence"]
    assert 0.9 < grains["token"]["effective_sample_share"] < 1


def test_a_grain_without_a_range_does_not_end_the_others(tmp_path, capsys):
    """Token ratios on both sides of 1 in every response, whose mean is above 1: no range of the sequence ratio clips
    below, and settings are printed for the others."""
    rows = [row(-0.2, 0.3, -0.1, 0.2, -0.3, 0.5, advantage=(-1.0) ** i) for i in range(16)]
    path, out = write_lines(tmp_path / "a.jsonl", rows), tmp_path / "out.json"
    assert main(["calibrate", "--rollouts", str(path), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "sequence: no clip range of the sequence ratio clips 0.50% of the tokens on this side, since 0" in printed
    assert "Share of tokens that published clip ranges clip" in printed and "GRPOConfig(epsilon=" in printed
    assert "importance_sampling_level" not in printed and "gspo: {clip" not in printed
    grains = json.loads(out.read_text())["grains"]
    assert grains["sequence"]["clip_range"] is None and len(grains["token"]["clip_range"]) == 2


def test_the_cause_of_impossible_ratios_is_named(tmp_path, capsys):
    """Another temperature moves all ratios to one side of 1: the notes are those of `anatomy`."""
    rows = [row(0.1, advantage=(-1.0) ** i) for i in range(200)]
    path = write_lines(tmp_path / "a.jsonl", rows)
    assert main(["calibrate", "--rollouts", str(path)]) == 0
    printed = capsys.readouterr().out
    (note,) = checks(read_rollouts(path))
    assert f"note: {note}" in printed and "the mean ratio is 1.11" in note
    assert "temperature, top-p or top-k" in note and "another tokenisation, prompt or model" in note
    assert "GRPOConfig" not in printed
