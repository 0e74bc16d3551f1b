"""The map of regimes: its policies against brute force, its estimators against the true gradient."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from policygrain.records import read_record
from policygrain_lab.cli import main
from policygrain_lab.exact import chains, map_figure
from policygrain_lab.exact import map as phase
from policygrain_lab.exact.decision import Estimator
from policygrain_lab.exact.records import MapRecord

ALL = [phase.REFERENCE, *phase.UNCLIPPED]
CLIPPED = [Estimator(name, ratio, phase.PpoClip(low=0.1, high=0.14)) for name, ratio in phase.RATIOS.items()]
by_name = {"ids": lambda e: f"{e.name}{', clipped' if e.is_clipped else ''}"}
shapes = pytest.mark.parametrize(("length", "group"), [(4, 1), (4, 2), (4, 4)])


def some(count, length=4, group=2):
    """Policies, others, and rewards."""
    generator = torch.Generator().manual_seed(5)
    logits, rewards = chains.problems(count, length, group, generator)
    return logits, logits + 0.5 * torch.randn(logits.shape, generator=generator, dtype=torch.float64), rewards


def by_hand(logits, rewards):
    """(response, its probability, its reward, what each token adds to ∇log π) by plain numbers, of one policy."""
    length, (groups, combinations) = len(logits), rewards.shape
    size = combinations.bit_length() - 1
    for response in itertools.product((0, 1), repeat=length):
        probability, slopes, before = 1.0, {}, 0
        for t, token in enumerate(response):
            chance = 1 / (1 + math.exp(-logits[t][before].item()))
            probability *= chance if token else 1 - chance
            slopes[t, before] = token - chance
            before = token
        words = [response[g * size : (g + 1) * size] for g in range(groups)]
        numbers = [rewards[g][int("".join(map(str, word)), 2)].item() for g, word in enumerate(words)]
        yield response, probability, sum(numbers) / groups, slopes


@shapes
def test_expected_reward_and_gradient_are_those_of_brute_force(length, group):
    logits, _, rewards = some(3, length, group)
    for one, own in zip(logits, rewards, strict=True):
        responses = list(by_hand(one, own))
        assert sum(p for _, p, _, _ in responses) == pytest.approx(1, abs=1e-12)
        expected = sum(p * r for _, p, r, _ in responses)
        assert chains.expected_reward(one[None], own[None]).item() == pytest.approx(expected, abs=1e-12)
        gradient = torch.zeros_like(one)
        for _, p, r, slopes in responses:
            for place, slope in slopes.items():
                gradient[place] += p * r * slope
        torch.testing.assert_close(chains.exact_gradient(one[None], own[None])[0], gradient, rtol=0, atol=1e-12)


def weights(name, ratios):
    """c_t of each token, from the tokens' ratios."""
    length, every = len(ratios), math.prod(ratios)
    windows = [ratios[t : t + 2] for t in range(length)]
    roots = [math.prod(window) ** (1 / len(window)) for window in windows]
    # Σ over the windows with token k of its share, over what these shares add up to on-policy.
    share = [[(t, 1 / len(windows[t])) for t in (k - 1, k) if t >= 0] for k in range(length)]
    block = [sum(s * roots[t] for t, s in own) / sum(s for _, s in own) for own in share]
    return {
        "none": [1.0] * length,
        "token": ratios,
        "block": block,
        "sequence": [every ** (1 / length)] * length,
        "product": [every] * length,
        "product, cap 2": [min(every, 2.0)] * length,
    }[name]


@shapes
@pytest.mark.parametrize("estimator", ALL, **by_name)
def test_moments_are_those_of_brute_force(estimator, length, group):
    """The sequence ratio's surrogate has the gradient of its mean, so each token has the same weight."""
    logits, behaviour, rewards = some(2, length, group)
    means, variances = phase.moments(estimator.method, logits, behaviour, rewards)
    for place in range(len(logits)):
        now = list(by_hand(logits[place], rewards[place]))
        old = list(by_hand(behaviour[place], rewards[place]))
        baseline = sum(p * r for _, p, r, _ in old)
        mean, square = torch.zeros_like(logits[place]), 0.0
        for (_, p, r, _), (_, _, _, slopes), (response, *_) in zip(old, now, now, strict=True):
            tokens = torch.tensor([[response]], dtype=torch.float64)
            one, other = (chains.log_probs(x[place : place + 1], tokens) for x in (logits, behaviour))
            ratios = (one - other).exp().flatten().tolist()
            own = torch.zeros_like(mean)
            for c, (where, slope) in zip(weights(estimator.name, ratios), slopes.items(), strict=True):
                own[where] = c * (r - baseline) * slope
            mean += p * own
            square += p * own.square().sum().item()
        torch.testing.assert_close(means[place], mean, rtol=0, atol=1e-12)
        assert variances[place].item() == pytest.approx(square - mean.square().sum().item(), abs=1e-12)


@shapes
@pytest.mark.parametrize("estimator", [*ALL, *CLIPPED], **by_name)
def test_on_policy_every_estimate_is_the_true_gradient(estimator, length, group):
    logits, _, rewards = some(50, length, group)
    mean, _ = phase.moments(estimator.method, logits, logits, rewards)
    torch.testing.assert_close(mean, chains.exact_gradient(logits, rewards), rtol=0, atol=1e-12)


def bias(name, distance):
    """Of 100 policies at this distance along the same directions."""
    start, other, rewards = some(100)
    logits = start + distance * (other - start)
    (estimator,) = (e for e in ALL if e.name == name)
    mean, _ = phase.moments(estimator.method, logits, start, rewards)
    return (mean - chains.exact_gradient(logits, rewards)).flatten(1).norm(dim=1).mean().item()


@pytest.mark.parametrize("distance", [0, 0.5, 4])
def test_the_product_is_unbiased_at_any_distance(distance):
    assert bias("product", distance) < 1e-12


@pytest.mark.parametrize("estimator", [e for e in ALL if e.name != "product"], **by_name)
def test_the_bias_of_all_others_grows_with_the_distance(estimator):
    biases = [bias(estimator.name, distance) for distance in (0, 0.25, 0.5, 1, 2)]
    assert biases[0] < 1e-12 and biases == sorted(biases)


def test_at_small_distances_the_bias_is_proportional_to_them():
    assert bias("none", 0.02) / bias("none", 0.01) == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("estimator", [*phase.UNCLIPPED, *CLIPPED], **by_name)
def test_without_stale_rollouts_all_runs_are_the_same(estimator):
    cell = phase.Cell(age=0)
    curves, _ = phase.run(estimator.method, cell, 4)
    torch.testing.assert_close(curves, phase.run(phase.REFERENCE.method, cell, 4)[0], rtol=0, atol=1e-9)


def test_runs_improve_and_first_rollouts_are_of_the_start():
    """Up to the age, the policy is that of a run with any larger age; every policy of a run is recorded."""
    one, other = (phase.run(phase.REFERENCE.method, phase.Cell(age), 50) for age in (16, 48))
    assert one[0].shape == (phase.STEPS // phase.EVERY, 50) and len(one[1]) == phase.STEPS + 1
    torch.testing.assert_close(one[1][:17], other[1][:17], rtol=0, atol=0)
    assert not torch.equal(one[1][18], other[1][18])
    assert one[0][-1].mean() > one[0][0].mean() + 0.05


def test_the_command_writes_record_and_figure(monkeypatch, tmp_path, capsys):
    """The figure has a panel per method, with bold text where a difference is shown."""
    monkeypatch.setattr(phase, "STEPS", 8)
    monkeypatch.setattr(phase, "CELLS", [replace(c, age=c.age // 8) for c in phase.CELLS if c.age > 4 and c.length < 8])
    assert main(["cases", "--map", "--seeds", "2", "--out", str(tmp_path)]) == 0
    written = read_record(MapRecord, tmp_path / "cases_map.json", "")
    assert len(written.cells) == len(phase.CELLS) and (tmp_path / "cases_map.png").exists()
    printed = capsys.readouterr()
    assert len(printed.out.strip().splitlines()) == 1 + len(phase.CELLS) + 1
    figure = map_figure.draw(written)
    rows = [cells for *_, cells in map_figure.by_row(written)]
    for place, axes in enumerate(figure.axes[1 : 1 + len(written.cells[0].methods)]):
        bold = [text.get_fontweight() == "bold" for text in axes.texts]
        assert bold == [cell.methods[place].p < 0.05 for row in rows for cell in row]
