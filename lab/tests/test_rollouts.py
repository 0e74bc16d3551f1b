"""Rollouts are read from files: columns by trainers' names, what may be missing, and what is said about mistakes."""

import json
import math
import subprocess
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from policygrain.errors import UserError
from policygrain.objective.terms import Grpo
from policygrain_lab.rollouts import files
from policygrain_lab.rollouts.anatomy import checks
from policygrain_lab.rollouts.dump import RolloutWriter
from policygrain_lab.rollouts.files import group_advantages, read_rollouts
from support import Row, read, row
from tests.support.files import write_lines

ROW = row(0.1, -0.1, 0.2, advantage=1.0)


def test_advantages_come_from_rewards_and_groups():
    """Rewards 1 and 0: (1 − ½) / (0.7071 + 1e-6) and its negative. A row without a mask has one of 1s."""
    rows = [row(0.1, 0.2, reward=1, group="a"), row(0.3, reward=0, group="a", mask=[1])]
    batch = read(rows).batch
    expected = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert batch.advantages[:, 0].tolist() == pytest.approx([expected, -expected])
    assert batch.log_ratio.tolist() == [pytest.approx([0.1, 0.2]), pytest.approx([0.3, 0.0])]
    assert batch.mask.tolist() == [[True, True], [True, False]]


def test_groups_of_any_size_have_their_advantages():
    generator = torch.Generator().manual_seed(3)
    groups = torch.randint(0, 5, (30,), generator=generator)
    rewards = torch.rand(30, generator=generator, dtype=torch.float64)
    found = group_advantages(Grpo(), rewards, groups)
    for group in groups.unique():
        torch.testing.assert_close(found[groups == group], Grpo()(rewards[groups == group].unsqueeze(0))[0])


def test_a_pipe_and_parquet_are_read_as_a_file(tmp_path):
    """`policygrain-lab calibrate --rollouts <(zcat rollouts.jsonl.gz)`: a pipe can be opened and read only once."""
    import pandas as pd

    path = write_lines(tmp_path / "a.jsonl", [ROW, row(0.3, advantage=2.0)])
    expected = read_rollouts(path).batch
    pd.read_json(path, lines=True).to_parquet(tmp_path / "a.parquet")
    with subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        piped = read_rollouts(Path(f"/dev/fd/{cat.stdout.fileno()}")).batch
    for batch in (piped, read_rollouts(tmp_path / "a.parquet").batch):
        torch.testing.assert_close(batch.log_ratio, expected.log_ratio)
        assert torch.equal(batch.advantages, expected.advantages)


def test_the_dump_of_prime_rl_is_read_as_it_is(tmp_path):
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
        write_lines(folder / f"rank_{rank}.jsonl", [record])
    (tmp_path / "token_exports/step_20/STABLE").touch()
    batch = read_rollouts(tmp_path / "token_exports").batch
    assert batch.mask.tolist() == [[False, True, True]] * 2
    assert batch.advantages.tolist() == [[0.0, 0.5, 0.5], [0.0, -0.5, -0.5]]
    assert batch.log_ratio[1].tolist() == pytest.approx([0.0, 0.1, -0.2])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: no \.jsonl or \.parquet file"):
        read_rollouts(tmp_path / "empty")


@pytest.mark.parametrize(("old", "new"), [("old_log_prob", "log_prob"), ("old_per_token_logps", "per_token_logps")])
def test_trainers_names_of_columns_are_understood(old, new):
    plain = row(0.1, -0.1)
    named = {old: plain["old_log_probs"], new: plain["log_probs"], "advantages": [2.0, 2.0]}
    batch = read([named]).batch
    assert batch.log_ratio[0].tolist() == pytest.approx([0.1, -0.1]) and batch.advantages[0, 0] == 2.0


def test_columns_that_are_not_read_are_named_once():
    """Other names of columns that are read are known."""
    one = ROW | {"mask": [1, 0, 1]}
    found = read([one, one | {"mask": [True, 0.0, 1]}])
    assert found.tokens["mask"].tolist() == [True, False, True] * 2 and not found.notes
    more = {"turns": [[0, 5], [3, 8]], "text": "abc", "env_name": None, "uid": "x", "completion_ids": [1, 2, 3]}
    notes = checks(read([one | more] * 3))
    assert [note for note in notes if "not read" in note] == ["columns that are not read: text, turns."]


def test_responses_without_a_token_in_the_loss_are_left_out():
    rows = [row(0.1, reward=i, group=g, mask=[i < 2]) for i, g in enumerate("aabba")] + [row(0.2, reward=2, group="c")]
    rows += [row(0.1, reward=unknown, group="a", mask=[0]) for unknown in (math.nan, [])]
    found = read([*rows, row(0.2, reward=3, group="c")])
    assert found.responses["group"].tolist() == [0, 0, 2, 2] and found.responses["reward"].tolist() == [0, 1, 2, 3]
    # As in trainers, their rewards stay in the baseline: here (0, 1, 4) of group a.
    by_response = [values[0].item() for values in found.tokens["advantages"].split(found.lengths.tolist())]
    assert by_response[:2] == pytest.approx([(reward - 5 / 3) / 2.0817 for reward in (0, 1)], abs=1e-4)


@pytest.mark.parametrize("unknown", [math.nan, None])
def test_a_token_that_the_engine_could_not_score_counts_as_equal(unknown):
    """As in training, where its weight is 1; as a column of the old policy it is refused."""
    scored = ROW | {"rollout_log_probs": [x - 0.1 for x in ROW["old_log_probs"]]}
    lacking = scored | {"rollout_log_probs": [unknown, *scored["rollout_log_probs"][1:]]}
    found = read([scored, lacking])
    weights = found.tokens["old_log_probs"] - found.tokens["rollout_log_probs"]
    assert weights.tolist() == pytest.approx([0.1, 0.1, 0.1, 0, 0.1, 0.1])
    assert any("could not score 1 tokens" in note for note in checks(found))
    old = {"inference_logprobs": lacking["rollout_log_probs"], "log_probs": ROW["log_probs"], "advantage": 1.0}
    with pytest.raises(UserError, match="line 1: inference_logprobs: token 1: nan cannot be a log-probability"):
        read([old])


def test_files_of_ranks_that_are_no_longer_there_are_replaced(tmp_path):
    x, mask = torch.zeros(1, 2), torch.ones(1, 2)
    for processes in (4, 2):
        for rank in reversed(range(processes)):
            RolloutWriter(tmp_path, rank, processes=processes).write(mask, {"log_probs": x})
    assert {file.name for file in tmp_path.iterdir()} == {"rank_0.jsonl", "rank_1.jsonl"}


def test_what_the_writer_writes_without_a_number_is_read(tmp_path):
    """NaN of an engine is written as null, which every reader of JSON knows."""
    x = torch.tensor([[-1.0, -2.0, -3.0]])
    engine = torch.tensor([[-1.0, math.nan, -2.5]])
    columns = {"old_log_probs": x, "log_probs": x - 0.1, "rollout_log_probs": engine, "advantage": torch.ones(1)}
    RolloutWriter(tmp_path / "rollouts").write(torch.ones(1, 3), columns)
    (line,) = (tmp_path / "rollouts/rank_0.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail)["rollout_log_probs"] == [-1.0, None, -2.5]
    assert read_rollouts(tmp_path / "rollouts").tokens["rollout_log_probs"].tolist() == [-1.0, -2.0, -2.5]


# ---- mistakes -------------------------------------------------------------------------------------------------------

CASES = yaml.safe_load(Path(__file__).with_name("rollouts.yaml").read_text())
WRONG: list[tuple[list[Row], str]] = [
    *(([ROW | changes], says) for changes, says in CASES["first"]),
    *(([ROW, ROW | changes], says) for changes, says in CASES["second"]),
    ([], "contains no response"),
    ([ROW, {"log_probs": [0.1]}], "line 2: needs one of 'old_log_probs'"),
    ([row(0.1, reward=1.0)], "needs `advantage`, or `reward` and `group`"),
    ([row(0.1, reward=1.0, group=7)], "group '7' has one response"),
    ([ROW | {"reward": 1.0, "group": 1}, ROW | {"advantage": None, "reward": 1.0, "group": 1}], "advantages: in some"),
    ([row(0.1, reward=r, group=0) for r in (1, 1e308)], r"line 2: reward: 1e\+308 is not a finite number"),
    ([row(0.1, reward=r, group=0) for r in (1, math.nan)], "line 2: reward: nan is not a finite number"),
    ([row(0.1, reward=r, group=0) for r in (1, 10**400)], "line 2: reward: 1000.* too large"),
    ([ROW | {"mask": [0] * 3}, ROW | {"mask": [False] * 3}], "mask is 0 everywhere in its 2 responses"),
]


@pytest.mark.parametrize(("rows", "says"), WRONG, ids=[says for _, says in WRONG])
def test_mistakes_are_named(rows, says):
    with pytest.raises(UserError, match=says):
        read(rows)


@given(
    column=st.sampled_from(["log_probs", "old_log_probs"]),
    place=st.integers(0, 2),
    number=st.floats(0.01, 1e308) | st.floats(-1e308, -10_001),
)
def test_what_is_no_log_probability_is_refused(column, place, number, tmp_path_factory):
    """Probabilities, logits and losses, in the third line of a file whose second is empty; but not under the mask."""
    path = tmp_path_factory.mktemp("rollouts") / "a.jsonl"
    values = [*ROW[column][:place], number, *ROW[column][place + 1 :]]
    path.write_text(f"{json.dumps(ROW)}\n\n{json.dumps(ROW | {column: values})}\n")
    with pytest.raises(UserError, match=rf"a\.jsonl, line 3: {column}: token {place + 1}: \S+ cannot be a log-prob"):
        read_rollouts(path)
    masked = ROW | {column: values, "mask": [i != place for i in range(3)]}
    assert len(read_rollouts(write_lines(path, [masked])).batch.mask) == 1


def test_a_file_is_read_line_by_line_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_TOKENS", 100)
    path = write_lines(tmp_path / "a.jsonl", [ROW] * 1000)
    with path.open("a") as file:
        file.write("never read")
    with pytest.raises(UserError, match=r"a\.jsonl, line 34: more than 100 tokens up to here"):
        read_rollouts(path)


def test_a_last_line_that_was_cut_off_is_named(tmp_path):
    """Also where a text has separators of lines that JSON allows inside a string."""
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(ROW | {"text": "a\u2028b"}, ensure_ascii=False) + "\n" + json.dumps(ROW) + "\n")
    assert len(read_rollouts(path).lengths) == 2
    path.write_text(path.read_text()[:-30])
    found = read_rollouts(path)
    assert len(found.lengths) == 1
    assert found.notes[0] == f"{path}, line 2: the last line is cut off and left out."


def test_a_reward_at_each_token_is_the_reward_of_the_response():
    """As prime-rl's exports have it; where the mask is 0 it may be another number."""
    ends = {"group": "a", "mask": [0, 1]}
    rows = [row(0.1, 0.2, reward=[0, 1], **ends), row(0.1, 0.2, reward=[0, 0], **ends)]
    assert read(rows).responses["reward"].tolist() == [1.0, 0.0]
    rows[0]["reward"], rows[0]["mask"] = [0, 1], [1, 1]
    with pytest.raises(UserError, match="different rewards of one response's tokens"):
        read(rows)
