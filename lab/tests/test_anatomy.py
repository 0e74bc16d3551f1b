"""The anatomy of a batch: coefficients by hand, what must add up, which objectives are the same, and mistakes."""

import json
import math
import random
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from policygrain_lab.cli import main
from policygrain_lab.rollouts import coefficients
from policygrain_lab.rollouts.anatomy import Anatomy, clusters, cosines_of, measure
from policygrain_lab.rollouts.coefficients import Work
from support import Row, read
from tests.support.files import write_lines

# Each example measures all objectives, so there are few, and none is made smaller.
FEW = settings(max_examples=4, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])


def made_up(groups: int = 6, size: int = 4, seed: int = 0, drift: float = 0.15, **more: Any) -> list[Row]:
    """Responses of 1 to 12 tokens, of which tool outputs are masked; half of them right."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for i in range(groups * size):
        count = int(torch.randint(1, 13, (1,), generator=generator))
        old = -3 * torch.rand(count, generator=generator, dtype=torch.float64)
        change = drift * torch.randn(count, generator=generator, dtype=torch.float64)
        mask = [int(k % 5 != 3) for k in range(count)]
        new = (old + change).clamp(max=0)
        rows.append({"old_log_probs": old.tolist(), "log_probs": new.tolist(), "mask": mask, "group": i // size,
                     "reward": float((i + i // size) % 3 == 0)} | more)  # fmt: skip
    return rows


def of(rows: list[Row], **how: Any) -> tuple[Work, Anatomy]:
    work = Work(read(rows), **how)
    return work, measure(work)


def coefficients_of(work: Work) -> dict[str, list[Tensor]]:
    """Objective → c of each response, in the order of the file."""
    found: dict[int, Tensor] = {}
    for _, rows, c, _, _ in work.chunks():
        found |= {row: c[:, i, : work.rollouts.lengths[row]] for i, row in enumerate(rows.tolist())}
    return {name: [found[row][k] for row in sorted(found)] for k, name in enumerate(work.methods)}


@given(seed=st.integers(0, 10_000), drift=st.sampled_from([0.05, 0.2, 0.8]))  # at 0, |ℓ| of kl_cov has no gradient
@FEW
def test_updates_are_the_gradients_of_the_losses(seed, drift):
    """Σ c ∇log π is that of the loss by autograd, in the logits of a policy with two actions, for all objectives here.

    Coefficients are those of parts of the responses, the loss is one of all of them.
    """
    rows = made_up(seed=seed, drift=drift)
    for row in rows:
        row["log_probs"] = [min(x, -1e-3) for x in row["log_probs"]]  # the other action has a probability
    rollouts = read(rows)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(coefficients, "CHUNK", 40)
        warnings.simplefilter("ignore")  # of masks by covariances
        work = Work(rollouts)
        found = coefficients_of(work)
        batch = rollouts.batch
        logits = torch.stack([batch.log_probs, (-batch.log_probs.expm1()).log()], 2)
        logits = logits.where(batch.mask.unsqueeze(2), 0.0).requires_grad_()
        for name, one in work.methods.items():
            if name == "clip_cov":  # which draws
                continue
            log_probs = logits.log_softmax(2)[..., 0]
            (expected,) = torch.autograd.grad(-one.loss(batch.replace(log_probs=log_probs)).loss, logits)
            c = torch.nn.utils.rnn.pad_sequence(found[name], batch_first=True)
            (update,) = torch.autograd.grad((c * logits.log_softmax(2)[..., 0]).sum(), logits)
            torch.testing.assert_close(update, expected, rtol=1e-6, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


@given(seed=st.integers(0, 10_000))
@FEW
def test_shares_add_up_and_cosines_are_cosines(seed):
    rows = made_up(seed=seed, entropy=1.0)
    for row in rows:
        row["entropy"] = [float(k) for k, _ in enumerate(row["mask"])]
        row["staleness"] = row["group"] % 3
    work, found = of(rows)
    assert {"advantage", "position", "turn", "length", "probability", "staleness", "entropy"} <= found.views.keys()
    total = torch.stack([torch.cat([x.abs() for x in each]).sum() for each in coefficients_of(work).values()])
    for view in found.views.values():
        assert sum(view.tokens) == pytest.approx(1)
        sums = view.update.sum(1)
        torch.testing.assert_close(sums[total > 0], torch.ones_like(sums[total > 0]), rtol=1e-9, atol=0)
    live = ~found.cosines.diagonal().isnan()
    assert torch.equal(live, total > 0)
    cosines = found.cosines[live][:, live]
    assert torch.equal(cosines, cosines.T) and (cosines.abs() <= 1).all()
    torch.testing.assert_close(cosines.diagonal(), torch.ones(len(cosines)).double())
    by_name = dict(zip(found.names, zip(*found.numbers.values(), strict=True), strict=True))
    assert by_name["reinforce"][2] == 0, "without a ratio no token with an advantage is silenced"


@given(seed=st.integers(0, 10_000))
@example(seed=638)  # all groups of a view have equal shares
@FEW
def test_silenced_tokens_are_counted_in_each_turn_and_any_other_group(seed):
    """By hand from c and the mask; the groups of a view together have the share of all tokens."""
    rows = made_up(seed=seed)
    work, found = of(rows)
    c = coefficients_of(work)
    rewards = torch.tensor([row["reward"] for row in rows]).view(-1, 4)
    has_advantage = (rewards != rewards.mean(1, keepdim=True)).flatten()
    fixed = [k for k, name in enumerate(found.names) if name != "clip_cov"]  # which draws
    turns = found.views["turn"]
    for k in fixed:
        name = found.names[k]
        quiet, counted = dict.fromkeys(turns.labels, 0), dict.fromkeys(turns.labels, 0)
        for i, row in enumerate(rows):
            before, turn = 0, 0
            for token, inside in enumerate(row["mask"]):
                turn += inside and not before
                before = inside
                if inside and has_advantage[i]:
                    counted[str(turn)] += 1
                    quiet[str(turn)] += float(c[name][i][token]) == 0
        expected = [quiet[t] / counted[t] if counted[t] else math.nan for t in turns.labels]
        assert turns.silenced[k].tolist() == pytest.approx(expected, nan_ok=True), name
    assert any((turns.silenced[k] > 0).any() for k in fixed), "some tokens are silenced, and counted"
    for name, view in found.views.items():
        ranges = view.silenced[fixed]
        whole = torch.tensor(found.numbers["silenced"], dtype=torch.float64)[fixed]
        low, high = ranges.nan_to_num(2).amin(1), ranges.nan_to_num(-1).amax(1)
        assert ((low <= whole + 1e-9) & (whole <= high + 1e-9)).all(), f"{name}: a mean is among its parts"


@given(
    vectors=st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), min_size=1, max_size=7),
    scales=st.lists(st.floats(0.1, 10), min_size=7, max_size=7),
)
def test_cosines_do_not_depend_on_scales_and_sets_are_of_like_objectives(vectors, scales):
    """Any two in a set have the threshold, equal directions share a set, and those without a direction have none."""
    x = torch.tensor(vectors).double()
    cosines = cosines_of(x @ x.T)
    scaled = x * torch.tensor(scales[: len(x)]).double().unsqueeze(1)
    torch.testing.assert_close(cosines_of(scaled @ scaled.T), cosines, equal_nan=True)
    sets, order = clusters(cosines, 0.9)
    live = [i for i in range(len(x)) if x[i].any()]
    assert sorted(i for members in sets for i in members) == sorted(order) == live
    assert all(cosines[i, j] >= 0.9 for members in sets for i in members for j in members)
    place = {i: number for number, members in enumerate(sets) for i in members}
    assert all(place[i] == place[j] for i in live for j in live if cosines[i, j] > 1 - 1e-12)
    assert [len(members) for members in sets] == sorted(map(len, sets), reverse=True)


def test_nothing_depends_on_how_responses_are_divided(monkeypatch):
    rows = made_up()
    work, whole = of(rows, own_advantages=True)
    monkeypatch.setattr(coefficients, "CHUNK", 20)
    assert len(list(work.chunks())) > 5
    parts = measure(work)
    fixed = torch.tensor([name != "clip_cov" for name in whole.names])  # which draws
    torch.testing.assert_close(parts.cosines[fixed][:, fixed], whole.cosines[fixed][:, fixed], equal_nan=True)
    for name in whole.numbers:
        a, b = (torch.tensor(each.numbers[name])[fixed] for each in (parts, whole))
        torch.testing.assert_close(a, b, equal_nan=True)


def test_each_step_is_normalised_by_itself():
    """A file of two steps has the coefficients of two files."""
    first, second = made_up(seed=1), made_up(seed=2, groups=2)
    for row in second:
        row["group"] += 100
    alone = [coefficients_of(of(rows)[0]) for rows in (first, second)]
    both = of([row | {"step": 7} for row in first] + [row | {"step": 3} for row in second])[0]
    for name, found in coefficients_of(both).items():
        if name != "clip_cov":
            for x, y in zip(found, alone[0][name] + alone[1][name], strict=True):
                torch.testing.assert_close(x, y)


def test_corrections_need_the_engine_and_weigh_tokens():
    """c of `token ≤ 2` is DAPO's times min(π_old/μ, 2)."""
    rows = made_up()
    _, without = of(rows)
    assert {name for name, reason in without.left_out.items() if reason == coefficients.NO_ENGINE} == {
        "bypass",
        "a3po",
        *(f"dapo, {name}" for name in coefficients.CORRECTIONS),
    }
    assert any(note.startswith("minirl, decoupled: computed without the correction") for note in without.notes)
    for row in rows:
        row["rollout_log_probs"] = [x - 0.4 * (k % 3) for k, x in enumerate(row["old_log_probs"])]
    _, without_age = of(rows)
    assert without_age.left_out["a3po"] == "needs the age of each response, in versions of the policy"
    for row in rows:
        row["staleness"] = 1
    work, _ = of(rows)
    found = coefficients_of(work)
    swapped = [row | {"old_log_probs": row["rollout_log_probs"]} for row in rows]
    without_engine = [{name: x for name, x in row.items() if name != "rollout_log_probs"} for row in swapped]
    to_engine = coefficients_of(of(without_engine)[0])
    for c, same in zip(found["bypass"], to_engine["decoupled"], strict=True):
        torch.testing.assert_close(c, same)
    for c, same in zip(found["a3po"], found["bypass"], strict=True):  # as old as one version: its anchor is the engine
        torch.testing.assert_close(c, same)
    for row, c, plain in zip(rows, found["dapo, token ≤ 2"], found["dapo"], strict=True):
        weights = torch.tensor([min(2.0, math.exp(0.4 * (k % 3))) for k, _ in enumerate(row["mask"])])
        torch.testing.assert_close(c, plain * weights.double())


def test_what_is_lacking_is_said_and_what_is_there_is_used():
    rows = made_up()
    _, found = of(rows)
    assert found.left_out["mpo_heads"] == "needs multi-token prediction heads"
    assert found.left_out["tepo_max_entropy"] == "needs an entropy with gradient"
    assert "gepo" in found.names and any(note.startswith("tepo, mpo_tepo: their mask uses cov") for note in found.notes)
    own = {"held": {"base": "grpo", "penalties": [{"name": "kl"}]}}
    without = [{k: v for k, v in row.items() if k not in ("group", "reward")} | {"advantage": 1.0} for row in rows]
    _, found = of(without, own=own)
    assert "the prompt of each response" in found.left_out["gepo"]
    assert found.left_out["held"] == "needs the initial policy's log-probabilities"
    _, found = of([row | {"ref_log_probs": row["old_log_probs"]} for row in rows], own=own)
    assert "held" in found.names


def sampled(top_p: bool = False, temperature: float = 1.0) -> list[Row]:
    """Tokens of a policy with 50 actions, and their log-probabilities among all, or among those that were left."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(400, 50, generator=generator, dtype=torch.float64)
    old, rows = logits.log_softmax(1), []
    kept = logits.where(old.exp() > 0.05, -torch.inf) if top_p else logits
    of_sampler = (kept / temperature).log_softmax(1)
    tokens = torch.multinomial(of_sampler.exp(), 40, replacement=True, generator=generator)
    column = of_sampler if top_p else old
    entropy = (-old.exp() * old).sum(1)
    new = (logits + 0.05 * torch.randn(400, 50, generator=generator)).log_softmax(1)
    for i in range(40):
        both = {"old_log_probs": column, "log_probs": new}
        rows.append({name: x.gather(1, tokens)[:, i].tolist() for name, x in both.items()} | {"advantage": (-1.0) ** i})
        rows[i] |= dict.fromkeys(("old_entropy", "entropy"), entropy.tolist())
    return rows


def test_a_temperature_or_top_p_that_log_probabilities_lack_is_noticed():
    ratio, entropy = "the mean ratio is 0.", "from the mean old_entropy"
    dumps = sampled(), sampled(top_p=True), sampled(temperature=0.7)
    right, cut, cold = (of(rows)[1] for rows in dumps)
    assert not [note for note in right.notes if ratio in note or entropy in note]
    assert [note for note in cut.notes if ratio in note], cut.notes
    assert [note for note in cold.notes if entropy in note], cold.notes


def test_an_engine_with_another_temperature_or_top_p_is_noticed():
    """Noise alone, errors of single tokens, is not."""
    rng, says, rows = random.Random(0), "noise cannot make it less than 1", sampled()
    for change, expected in (
        (lambda x: x + rng.gauss(0, 0.1), None),
        (lambda x: 0.7 * x, "the mean of π_old/μ"),
        (lambda x: 1.4 * x, "the mean of μ/π_old"),
        (lambda x: x + 0.1, "the mean of π_old/μ"),  # all of them divided by what top-p left, 0.9
    ):
        given = [row | {"rollout_log_probs": [min(-1e-6, change(x)) for x in row["old_log_probs"]]} for row in rows]
        notes = [note for note in of(given)[1].notes if says in note]
        assert len(notes) == (expected is not None), notes
        assert all(note.startswith(str(expected)) for note in notes)


def test_unusual_rollouts_are_read_and_said():
    rows = made_up()
    _, found = of([*rows[:-1], *(row | {"log_probs": row["old_log_probs"]} for row in rows[-1:])])
    assert not any("all ratios are 1" in note for note in found.notes)
    _, found = of([row | {"log_probs": row["old_log_probs"], "top_p": 0.9} for row in rows[:-2]])
    notes = " ".join(found.notes)
    assert "all ratios are 1" in notes and "groups have 2 to 4 responses" in notes and "top_p was below 1" in notes
    _, some = of([row | {"mask": [0] * len(row["mask"])} if row["group"] == 1 else row for row in rows])
    assert not any("groups have" in note for note in some.notes), "a group of masked responses has no size"
    sets, _ = clusters(found.cosines)
    like = next(members for members in sets if found.names.index("dapo") in members)
    assert {"reinforce", "mpo_tiled", "cispo", "tepo_v1"} <= {found.names[i] for i in like}, "on-policy all are alike"


GOOD = {"old_log_probs": [-1.0, -2.0], "log_probs": [-1.1, -1.9], "reward": 1.0, "group": 0}
OWN = ["--advantages", "method"]
ROWS = [GOOD, GOOD | {"reward": 0.0}]
WRONG: list[tuple[list[Row], list[str], str]] = [
    ([GOOD, GOOD], [], "all advantages are 0"),
    ([{"old_log_probs": [-1.0], "log_probs": [-1.0], "advantage": 1.0}], [], "one token has an advantage"),
    ([{"old_log_probs": [-1.0] * 2, "log_probs": [-1.0] * 2, "advantage": 1}], OWN, "needs `reward`"),
    *((ROWS, *case) for case in yaml.safe_load(Path(__file__).with_name("rollouts.yaml").read_text())["options"]),
]


@pytest.mark.parametrize(("rows", "options", "says"), WRONG, ids=[says for *_, says in WRONG])
def test_mistakes_are_named(rows, options, says, tmp_path, capsys):
    options = [option.format(none=tmp_path / "none.yaml") for option in options]
    path = write_lines(tmp_path / "a.jsonl", rows)
    assert main(["anatomy", "--rollouts", str(path), "--out", str(tmp_path / "a.html"), *options]) == 2
    assert re.search(says, capsys.readouterr().err)
    assert not (tmp_path / "a.html").exists()


def test_the_command_prints_a_table_and_writes_a_page(tmp_path, capsys):
    path = write_lines(tmp_path / "<b>.jsonl", made_up())
    (tmp_path / "own.yaml").write_text("methods: {wide & new: {base: dapo, clip: {low: 0.9, high: 9}}}\n")
    out, own = tmp_path / "page.html", ["--methods", str(tmp_path / "own.yaml")]
    assert main(["anatomy", "--rollouts", str(path), "--out", str(out), *own]) == 0
    printed = capsys.readouterr().out
    assert "24 responses, " in printed and "On this batch " in printed and "left out: " in printed
    assert any(line.startswith("wide & new") for line in printed.splitlines())
    text = out.read_text()
    tags = re.findall(r"<(\w+)", text)
    assert not re.search(r"\b(src|href)\s*=", text) and "script" not in tags and {"svg", "table"} <= set(tags)
    assert "Anatomy of &lt;b&gt;.jsonl" in text and "wide &amp; new" in text
    assert main(["anatomy", "--rollouts", str(path), "--json", *own]) == 0
    data = json.loads(capsys.readouterr().out)
    names = data["names"]
    count = len(names)
    assert len(data["cosines"]) == count and tags.count("rect") == count**2 and data["gradient"] is None
    largest = data["same"][0]
    assert f"On this batch {len(largest)} of these {count} objectives are the same update" in data["sentences"][0]
    assert {"token", "cispo"} <= set(names) and data["views"]["advantage"]["labels"] == ["negative", "0", "positive"]
