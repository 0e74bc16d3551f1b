"""Ranges from a user's own rollouts: arithmetic, trainers' column names, and what is said about mistakes."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.integrations.anatomy import checks
from policygrain.integrations.calibrate import draw, measure, published_ranges
from policygrain.integrations.rollout_files import read_rollouts


def row(log_ratio: list[float], **more: Any) -> dict[str, Any]:
    old = [-1.0 - 0.1 * i for i in range(len(log_ratio))]
    return {"old_log_probs": old, "log_probs": [o + x for o, x in zip(old, log_ratio, strict=True)], **more}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(r)}\n" for r in rows))
    return path


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """200 responses of 20 tokens, log-ratios of standard deviation 0.1, in groups of four of which one is right."""
    generator = torch.Generator().manual_seed(0)
    drift = 0.1 * torch.randn(200, 20, generator=generator, dtype=torch.float64)
    rows = [
        row(d.tolist(), reward=float(i % 4 == 0), group=i // 4, staleness=1 + 15 * (i % 2)) for i, d in enumerate(drift)
    ]
    return write(tmp_path / "rollouts.jsonl", rows)


def test_advantages_come_from_rewards_and_groups(tmp_path: Path) -> None:
    """Rewards 1 and 0: (1 − ½) / (0.7071 + 1e-6) and its negative; the mask leaves a token out."""
    rows = [row([0.1, 0.2], reward=1, group="a"), row([0.3], reward=0, group="a", mask=[1])]
    batch = read_rollouts(write(tmp_path / "a.jsonl", rows)).batch
    expected = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert batch.advantages[:, 0].tolist() == pytest.approx([expected, -expected])
    assert batch.log_ratio.tolist() == [pytest.approx([0.1, 0.2]), pytest.approx([0.3, 0.0])]
    assert batch.mask.tolist() == [[True, True], [True, False]]


def test_a_pipe_is_read_as_a_file(many: Path) -> None:
    """`policygrain calibrate --rollouts <(zcat rollouts.jsonl.gz)`: it can be opened and read only once."""
    with subprocess.Popen(["cat", str(many)], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        piped = read_rollouts(Path(f"/dev/fd/{cat.stdout.fileno()}"))
    assert torch.equal(piped.batch.log_ratio, read_rollouts(many).batch.log_ratio)


def test_the_dump_of_prime_rl_is_read_as_it_is(tmp_path: Path) -> None:
    """A folder with a file for each rank; prompts are masked and may have no number; advantages are of tokens."""
    known = {"schema_version": 1, "step": 20, "micro_step": 0, "env_name": "maths", "token_ids": [1, 2, 3]}
    for rank, advantage in enumerate((0.5, -0.5)):
        folder = tmp_path / "token_exports/step_20"
        folder.mkdir(parents=True, exist_ok=True)
        record = known | {
            "rank": rank,
            "loss_mask": [False, True, True],
            "advantages": [0.0, advantage, advantage],
            "inference_logprobs": [None, -1.0, -2.0],
            "trainer_logprobs": [None, -0.9, -2.2],
        }
        write(folder / f"rank_{rank}.jsonl", [record])
    (tmp_path / "token_exports/step_20/STABLE").touch()
    batch = read_rollouts(tmp_path / "token_exports").batch
    assert batch.mask.tolist() == [[False, True, True]] * 2
    assert batch.advantages.tolist() == [[0.0, 0.5, 0.5], [0.0, -0.5, -0.5]]
    assert batch.log_ratio[1].tolist() == pytest.approx([0.0, 0.1, -0.2])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: no \.jsonl or \.parquet file"):
        read_rollouts(tmp_path / "empty")


@pytest.mark.parametrize(
    "names",
    [
        {"old_log_probs": "inference_logprobs", "log_probs": "trainer_logprobs", "advantage": "advantages"},
        {"old_log_probs": "old_log_prob", "log_probs": "log_prob", "advantage": "advantages"},
        {"old_log_probs": "old_per_token_logps", "log_probs": "per_token_logps", "advantage": "advantages"},
    ],
)
def test_trainers_names_of_columns_are_understood(names: dict[str, str], tmp_path: Path) -> None:
    plain = row([0.1, -0.1], advantage=[2.0, 2.0])
    batch = read_rollouts(write(tmp_path / "a.jsonl", [{names.get(k, k): v for k, v in plain.items()}])).batch
    assert batch.log_ratio[0].tolist() == pytest.approx([0.1, -0.1]) and batch.advantages[0, 0] == 2.0


def test_the_band_clips_the_wanted_share(many: Path) -> None:
    rollouts = read_rollouts(many)
    for grain in measure(rollouts, share=0.04):
        ratios = {"token": rollouts.batch.log_ratio, "sequence": rollouts.batch.log_ratio.mean(1, keepdim=True)}
        if grain.name not in ratios:
            continue
        values = ratios[grain.name].expand_as(rollouts.batch.log_ratio).exp()
        sign = rollouts.batch.advantages.sign()
        low, high = grain.clip_range
        clipped = [
            ((values < 1 - low) & (sign < 0)).double().mean(),
            ((values > 1 + high) & (sign > 0)).double().mean(),
        ]
        assert [float(x) for x in clipped] == pytest.approx([0.02, 0.02], abs=0.006), grain.name
    token, sequence = (next(g for g in measure(rollouts) if g.name == name) for name in ("token", "sequence"))
    assert sequence.clip_range[1] < token.clip_range[1] / 3, "a mean of twenty log-ratios spreads less"
    assert token.published.keys() == {"grpo", "grpo_clip_higher"} and token.published["grpo"][0] < 0.03
    assert set(token.by_staleness) == {"1", "16"}
    assert published_ranges("sequence") == {"gspo": (3e-4, 4e-4), "tepo_v1": (0.2, 0.28), "luspo": (2e-3, 2.5e-3)}


def test_the_command_prints_a_table_and_lines_to_paste(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, figure = tmp_path / "out.json", tmp_path / "figure.png"
    assert main(["calibrate", "--rollouts", str(many), "--out", str(out), "--figure", str(figure)]) == 0
    said = capsys.readouterr().out
    assert "200 responses, 4,000 tokens" in said and "GRPOConfig(epsilon=" in said and "actor.clip_ratio_low=" in said
    grains = json.loads(out.read_text())["grains"]
    assert (
        list(grains) == ["token", "block", "prefix", "sequence"] and 0.9 < grains["token"]["effective_sample_share"] < 1
    )
    assert figure.stat().st_size > 10_000


def test_a_grain_without_a_range_does_not_end_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Token ratios on both sides of 1 in every response, whose mean is above 1: no range of the sequence ratio clips
    below, and settings are printed for the others."""
    rows = [row([-0.2, 0.3, -0.1, 0.2, -0.3, 0.5], advantage=(-1.0) ** i) for i in range(16)]
    path, out = write(tmp_path / "a.jsonl", rows), tmp_path / "out.json"
    assert main(["calibrate", "--rollouts", str(path), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert (
        "sequence: no clip range of the sequence ratio clips 0.50% of the tokens on this side, since 0.00%" in printed
    )
    assert "Share of tokens that published clip ranges clip" in printed and "GRPOConfig(epsilon=" in printed
    assert "importance_sampling_level" not in printed and "gspo: {clip" not in printed
    grains = json.loads(out.read_text())["grains"]
    assert grains["sequence"]["clip_range"] is None and len(grains["token"]["clip_range"]) == 2


def test_the_cause_of_impossible_ratios_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another temperature moves all ratios to one side of 1: the notes are those of `anatomy`."""
    rows = [row([0.1], advantage=(-1.0) ** i) for i in range(200)]
    path = write(tmp_path / "a.jsonl", rows)
    assert main(["calibrate", "--rollouts", str(path)]) == 0
    printed = capsys.readouterr().out
    (note,) = checks(read_rollouts(path))
    assert f"note: {note}" in printed and "the mean ratio is 1.11" in note
    assert "temperature, top-p or top-k" in note and "another tokenisation, prompt or model" in note
    assert "GRPOConfig" not in printed


def test_a_figure_of_another_kind_is_refused_first(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--rollouts", str(many), "--figure", "ratios.txt"]) == 2
    printed, error = capsys.readouterr()
    assert not printed and "--figure ratios.txt: a figure is one of" in error and ".png" in error


def test_parquet_is_read_too(many: Path, tmp_path: Path) -> None:
    import pandas as pd

    pd.read_json(many, lines=True).to_parquet(tmp_path / "rollouts.parquet")
    one, other = read_rollouts(many), read_rollouts(tmp_path / "rollouts.parquet")
    torch.testing.assert_close(one.batch.log_ratio, other.batch.log_ratio)
    assert torch.equal(one.batch.advantages, other.batch.advantages)


WRONG: list[tuple[list[Any], str]] = [
    ([], "contains no response"),
    ([{"log_probs": [0.1]}], "line 1: has none of 'old_log_probs'"),
    ([row([0.1]) | {"log_probs": [-1.0, -2.0]}], "line 1: 1 old and 2 new log-probabilities"),
    ([row([0.1], reward=1.0)], "needs `advantage`, or `reward` and `group`"),
    ([row([0.1], reward=1.0, group=7)], "group '7' has one response"),
    ([row([0.1], advantage=1.0) | {"log_probs": "x"}], "line 1: log_probs: expected a list"),
    ([row([0.1], advantage=1.0) | {"log_probs": [None]}], "line 1: log_probs: None is no finite number"),
    ([row([0.1], advantage=1.0) | {"log_probs": [math.nan]}], "line 1: log_probs: nan is no finite number"),
    ([row([0.1], advantage=1.0, mask=[1, 1])], "line 1: mask: 2 entries for 1 tokens"),
    ([row([0.1], advantage=1.0, staleness=1), row([0.1], advantage=1.0)], "1 of 2 rows have a value for staleness"),
    ([row([0.0], advantage=1.0)], "all ratios are 1"),
    ([row([0.1], advantage=1.0, staleness=-1)], "staleness: -1 updates"),
    ([row([0.1], reward=r, group=0) for r in (1e308, -1e308)], r"line 1: reward: 1e\+308 is too large"),
    ([row([0.1 * (-1) ** i], reward=1.0, group=0) for i in range(4)], "all advantages are 0"),
]


@pytest.mark.parametrize(("rows", "says"), WRONG, ids=[says for _, says in WRONG])
def test_mistakes_are_named(rows: list[Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        measure(read_rollouts(write(tmp_path / "a.jsonl", rows)))


ROW = row([0.1, -0.1, 0.2], advantage=1.0)


@given(
    column=st.sampled_from(["log_probs", "old_log_probs"]),
    place=st.integers(0, 2),
    number=st.floats(0.01, 1e308) | st.floats(-1e308, -10_001),
)
def test_what_is_no_log_probability_is_refused(
    column: str, place: int, number: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Probabilities, logits and losses, in the third line of a file whose second is empty; but not under the mask."""
    path = tmp_path_factory.mktemp("rollouts") / "a.jsonl"
    values = [*ROW[column][:place], number, *ROW[column][place + 1 :]]
    path.write_text(f"{json.dumps(ROW)}\n\n{json.dumps(ROW | {column: values})}\n")
    said = rf"a\.jsonl, line 3: {column}: (token {place + 1}: \S+ cannot be a log-prob|\S+ is too large)"
    with pytest.raises(UserError, match=said):
        read_rollouts(path)
    if abs(number) < 1e100:
        masked = ROW | {column: values, "mask": [i != place for i in range(3)]}
        assert len(read_rollouts(write(path, [masked])).batch.mask) == 1


def test_every_published_bound_is_within_its_panel(many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ratios of sequences are spread far less than some bounds for them."""
    from matplotlib import pyplot

    monkeypatch.setattr(pyplot, "close", lambda figure: None)
    draw(read_rollouts(many), tmp_path / "ratios.png")
    panels = {axes.get_title(): axes for axes in pyplot.gcf().axes}
    for name, axes in panels.items():
        low, high = axes.get_xlim()
        shown = [float(line.get_xdata()[0]) for line in axes.lines]
        bounds = [
            end
            for a, b in published_ranges(name).values()
            for end in (math.log1p(-a) if a < 1 else None, math.log1p(b))
        ]
        assert shown == pytest.approx([end for end in bounds if end is not None])
        assert all(low < end < high for end in shown)
    monkeypatch.undo()
    pyplot.close("all")
