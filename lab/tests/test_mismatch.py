"""The engine against the old policy: shares by hand, and noise and bias that are simulated."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from policygrain_lab.cli import main
from policygrain_lab.rollouts.anatomy import UNRELATED, checks
from policygrain_lab.rollouts.files import Rollouts, read_rollouts
from policygrain_lab.rollouts.mismatch import LEAST, Mismatch, measure, table
from tests.support.files import write_lines


def measured(old: Tensor, engine: Tensor, lengths: Sequence[int]) -> Mismatch:
    """What is measured for these log-probabilities of all tokens."""
    tokens = {"old_log_probs": old, "log_probs": old, "rollout_log_probs": engine, "advantages": torch.ones_like(old)}
    tokens["mask"] = torch.ones_like(old, dtype=torch.bool)
    found = measure(Rollouts(tokens, {}, torch.as_tensor(lengths), []))
    assert found is not None
    return found


def of(log_ratios: list[Tensor]) -> Mismatch:
    """What is measured for these log π_old/μ."""
    log_ratio = torch.cat(log_ratios).double()
    engine = torch.full_like(log_ratio, -1.0)
    return measured(engine + log_ratio, engine, [len(x) for x in log_ratios])


def simulated(tokens: Callable[[Tensor], Tensor], seed: int, responses: int = 200) -> Mismatch:
    """Responses of 5 to 200 tokens; ``tokens``: standard normal numbers of a response → its log-ratios."""
    generator = torch.Generator().manual_seed(seed)
    lengths = (5 * 40 ** torch.rand(responses, generator=generator)).long().tolist()
    return of([tokens(torch.randn(1 + n, generator=generator, dtype=torch.float64)) for n in lengths])


# ---- diagnosis ------------------------------------------------------------------------------------------------------

SIZE = 0.1
NOISE = {  # the mean is −SIZE²/2 where the engine's tokens are its own samples, and SIZE²/2 where they are π_old's
    "of mean 0": lambda z: SIZE * z[1:],
    "sampled from the engine": lambda z: SIZE * z[1:] - SIZE**2 / 2,
    "sampled from the old policy": lambda z: SIZE * z[1:] + SIZE**2 / 2,
    "in few tokens": lambda z: torch.where(z[1:] > 1.5, 0.3, 0.0) - torch.where(z[1:] < -1.5, 0.3, 0.0),
}
BIAS = {
    "of all tokens": lambda z: torch.full_like(z[1:], -0.02),
    "of all tokens, with noise": lambda z: 0.02 + SIZE * z[1:],
    "of each response": lambda z: 0.05 * z[0].expand(len(z) - 1),
    "of each response, with noise": lambda z: 0.2 * z[0] + SIZE * z[1:],
}


@pytest.mark.parametrize("kind", NOISE)
def test_noise_is_recognised(kind):
    """In most of eight data sets; an interval of 95% leaves −½ out in some."""
    found = [simulated(NOISE[kind], seed) for seed in range(8)]
    assert [one.diagnosis for one in found].count("noise") >= 6
    intervals = [one.slope_interval for one in found if one.slope_interval is not None]
    assert sum(low < -0.5 < high for low, high in intervals) >= 7


@pytest.mark.parametrize("kind", BIAS)
def test_bias_is_recognised(kind):
    found = [simulated(BIAS[kind], seed) for seed in range(8)]
    assert [one.diagnosis for one in found].count("bias") >= 7
    for one in found:
        if kind.startswith("of all tokens"):
            assert one.mean == pytest.approx(-0.02 if kind == "of all tokens" else 0.02, abs=0.005)
            assert not one.from_noise[0] <= one.mean <= one.from_noise[1]
        else:
            assert one.slope is not None and abs(one.slope) < 0.25


def test_too_few_responses_and_equal_lengths_are_said():
    few = simulated(NOISE["of mean 0"], 0, responses=LEAST - 1)
    assert few.diagnosis == "not enough responses" and few.interval is None
    assert "(not enough responses)" in table(few)
    generator = torch.Generator().manual_seed(0)
    alike = of([*(SIZE * torch.randn(100, 20, generator=generator, dtype=torch.float64))])
    assert alike.diagnosis == "not enough responses" and alike.slope is None and alike.interval is not None


def test_an_engine_that_is_the_old_policy_is_said():
    assert simulated(lambda z: 0 * z[1:], 0).diagnosis == "none"


# ---- corrections ----------------------------------------------------------------------------------------------------


def test_shares_by_hand():
    """Weights 1, 3, 6; ½, 1; 1, 1, 1, 1; their products are 18, ½ and 1, over 3, 2 and 4 of nine tokens."""
    weights = [[1.0, 3.0, 6.0], [0.49, 1.0], [1.0, 1.0, 1.0, 1.0]]
    found = of([torch.tensor(row, dtype=torch.float64).log() for row in weights]).corrections
    expected = {  # dropped, truncated, responses
        "token ≤ 2": (0, 2, 1),
        "token masked 0.5–5": (2, 0, 2),
        "token masked 0–5": (1, 0, 1),
        "sequence ≤ 2": (0, 3, 1),
        "sequence masked 0–3": (3, 0, 1),
        "sequence ≤ 2, rejected outside 0.5–2": (5, 0, 2),
        "geometric masked 0.99–1.01": (5, 0, 2),
        "geometric rejected outside 0.999–1.001": (5, 0, 2),
    }
    for name, (dropped, truncated, responses) in expected.items():
        one = found[name]
        shares = (one.dropped, one.truncated, one.responses)
        assert shares == pytest.approx((dropped / 9, truncated / 9, responses / 3)), name
    assert found.keys() == expected.keys()
    token, sequence = found["token ≤ 2"], found["sequence ≤ 2"]
    assert (token.weight_max, token.weight_mean) == (pytest.approx(6), pytest.approx((1 + 3 + 6 + 0.49 + 5) / 9))
    assert sequence.weight_mean == pytest.approx((3 * 18 + 2 * 0.49 + 4) / 9)
    # min(w, 2): 1, 2, 2, 0.49 and five times 1.
    assert token.effective_sample_share == pytest.approx(10.49**2 / (9 * (4 + 4 + 6 + 0.49**2)))
    assert token.by_length == {"≤ 2.5": 0.0, "≤ 3": pytest.approx(2 / 3), "> 3.5": 0.0}


# ---- command --------------------------------------------------------------------------------------------------------


def dump(path: Path, drift: float, engine: bool, advantage: float = 1.0) -> Path:
    """Forty responses of one to forty tokens, of which tool output is masked."""
    generator = torch.Generator().manual_seed(0)
    rows: list[dict[str, Any]] = []
    for i in range(40):
        z = torch.randn(3, i + 1, generator=generator, dtype=torch.float64)
        old = (-2 + 0.1 * z[0]).tolist()
        row: dict[str, Any] = {"old_log_probs": old, "advantage": advantage * (-1) ** i, "mask": [1] * (i + 1)}
        row["log_probs"] = [x + drift * float(y) for x, y in zip(old, z[1], strict=True)]
        if engine:
            row["rollout_log_probs"] = [x + 0.1 * float(y) for x, y in zip(old, z[2], strict=True)]
            if i > 2:
                row["mask"][1], row["rollout_log_probs"][1] = 0, None
        rows.append(row)
    return write_lines(path, rows)


def test_the_command_measures_what_is_there(tmp_path, capsys):
    out = tmp_path / "out.json"
    printed = {}
    for name, drift, engine in (("three", 0.1, True), ("on-policy", 0.0, True), ("two", 0.1, False)):
        path = dump(tmp_path / f"{name}.jsonl", drift, engine)
        assert main(["calibrate", "--rollouts", str(path), "--share", "0.1", "--out", str(out)]) == 0
        printed[name] = capsys.readouterr().out
        content = json.loads(out.read_text(), parse_constant=pytest.fail)
        assert ("grains" in content) == (name != "on-policy")
        assert (content["engine"] is not None) == engine
    assert "token ≤ 2" in printed["three"] and "effective" in printed["three"] and "GRPOConfig" in printed["three"]
    assert "Clip ranges are not measured: all ratios are 1" in printed["on-policy"]
    assert "not enough responses" in printed["on-policy"]
    assert "needs log-probabilities of the engine" in printed["two"] and "token ≤ 2" not in printed["two"]


def test_an_engine_that_scored_other_tokens_is_said(tmp_path, capsys):
    """Log-probabilities of other tokens, and the same of another temperature, which is no such error."""
    generator = torch.Generator().manual_seed(0)
    printed = {}
    for name in ("other tokens", "temperature"):
        rows = []
        for i in range(60):
            old, engine = -4 * torch.rand(2, 10 + i, generator=generator, dtype=torch.float64)
            drift = 0.05 * torch.randn(10 + i, generator=generator, dtype=torch.float64)
            engine = engine if name == "other tokens" else old / 2
            columns = {"old_log_probs": old, "log_probs": (old + drift).clamp(max=0), "rollout_log_probs": engine}
            rows.append({k: x.tolist() for k, x in columns.items()} | {"advantage": (-1.0) ** i})
        path = write_lines(tmp_path / "a.jsonl", rows)
        assert main(["calibrate", "--rollouts", str(path)]) == 0
        printed[name] = capsys.readouterr().out
        found = measure(read_rollouts(path))
        assert found is not None and (found.diagnosis == "other tokens") == (name == "other tokens")
        assert (UNRELATED in checks(read_rollouts(path))) == (name == "other tokens")
    assert f"note: {UNRELATED}" in printed["other tokens"] and "GRPOConfig" not in printed["other tokens"]
    assert "Compare temperature" not in printed["other tokens"] and "GRPOConfig" in printed["temperature"]


@pytest.mark.parametrize("column", ["log_probs", "rollout_log_probs"])
def test_one_response_that_no_update_explains_is_said(column, tmp_path):
    rows = [json.loads(line) for line in dump(tmp_path / "a.jsonl", 0.1, True).read_text().splitlines()]
    assert not [note for note in checks(read_rollouts(tmp_path / "a.jsonl")) if "differ by up to" in note]
    rows[20][column] = [-9000.0] * 21
    write_lines(tmp_path / "a.jsonl", rows)
    (note,) = [note for note in checks(read_rollouts(tmp_path / "a.jsonl")) if "differ by up to" in note]
    assert note.startswith(f"{column} and old_log_probs differ by up to 8,998, by more than 20 at 20 tokens")
    assert "response 21)" in note and "another tokenisation, prompt or model" in note


@pytest.mark.parametrize("temperature", [0.6, 0.9, 1.0, 1.1, 1.5])
@pytest.mark.parametrize("on", ["engine", "trainer"])
def test_a_temperature_on_one_side_is_told_from_noise(temperature, on):
    """Tokens of random distributions, sampled at the temperature; only one side's log-probabilities have it."""
    generator = torch.Generator().manual_seed(1)
    lengths = (5 * 40 ** torch.rand(100, generator=generator)).long()
    logits = 2 * torch.randn(int(lengths.sum()), 12, generator=generator, dtype=torch.float64)
    scaled = (logits / temperature).log_softmax(1)
    ids = torch.multinomial(scaled.exp(), 1, generator=generator)
    with_it, without = (x.gather(1, ids).squeeze(1) for x in (scaled, logits.log_softmax(1)))
    noise = 0.01 * torch.randn(len(with_it), generator=generator, dtype=torch.float64)
    found = measured(*((without + noise, with_it) if on == "engine" else (with_it + noise, without)), lengths)
    assert (found.diagnosis == "temperature") == (temperature != 1.0)
    if temperature == 1.0:
        assert found.diagnosis == "noise" and max(x or 0 for x in found.scale) <= 1.01
