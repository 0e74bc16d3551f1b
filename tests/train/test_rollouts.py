"""Between sampling and the loss: rewards, dynamic sampling, and log-probabilities of the old policy and the engine."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from policygrain.clock import Clock
from policygrain.errors import UserError
from policygrain.model.engine import Request, Response
from policygrain.model.torch_engine import TorchEngine
from policygrain.objective import Sampler, method
from policygrain.objective.correction import rollout_weights
from policygrain.study import Study
from policygrain.study.schema import Training
from policygrain.train import rollout_batch as module
from policygrain.train.rollout_batch import _needs_log_probs_alone
from policygrain.train.rollouts import Rollouts, _overlong

from ..support.engines import score_responses
from ..support.scripted import Scripted
from ..support.small import small_study, trained

MIXED, ALL, NONE = (True, False), (True, True), (False, False)


def collect(
    script: Sequence[tuple[bool, ...]], lengths: Any = (3, 3), prompts: Any = 2, **sampler: Any
) -> tuple[Rollouts, Scripted]:
    """A batch of groups of two, of these lengths."""
    part = Scripted(script, lengths)
    settings = Training(prompts_per_step=prompts, group=2, max_tokens=10)
    return part.collector(settings, Sampler(**sampler)).collect(Clock()), part


def test_the_overlong_punishment_by_hand():
    responses = [Response([0] * n, True, [0.0] * n) for n in (1, 8, 9, 10)]  # L_max 10, B 2: free up to 8
    assert _overlong(responses, 10, 0.2).tolist() == pytest.approx([0, 0, 0.5, 1])
    assert _overlong(responses, 10, 0.0).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("dynamic", [False, True])
def test_batches_that_are_sampled_together_are_those_of_single_calls(dynamic):
    """The same prompts, seeds and rewards, by fewer calls of the engine."""
    script = [MIXED, ALL, NONE, MIXED, MIXED, ALL, MIXED, MIXED] * 2
    part, settings = Scripted(script, (3, 4)), Training(prompts_per_step=2, group=2, max_tokens=10)
    batches: dict[bool, list[Rollouts]] = {}
    for together in (False, True):
        collector = part.collector(settings, Sampler(dynamic=dynamic))
        if together:
            collector.sample_ahead(Clock(), range(6))
        position, batches[together] = 0, []
        for _ in range(3):
            batches[together].append(collector.collect(Clock(), position))
            position += batches[together][-1].sampled
        assert not collector._waiting
    for one, other in zip(*batches.values(), strict=True):
        assert one.prompts == other.prompts and one.sampled == other.sampled
        assert torch.equal(one.rewards, other.rewards)


@pytest.mark.parametrize(
    ("script", "sampler", "prompts", "sampled"),
    [
        # Four are sampled for two and one is useful; then two more for the other, of which one is.
        ([ALL, NONE, NONE, MIXED, NONE, MIXED, ALL], {"dynamic": True}, [3, 5], 6),
        ([ALL, MIXED, MIXED, MIXED], {"dynamic": True}, [1, 2], 4),
        ([ALL, MIXED, MIXED, MIXED], {"dynamic": True, "oversample": 1.5}, [1, 2], 3),
        ([NONE] * 3 + [MIXED] + [NONE] * 20, {"dynamic": True, "max_batches": 3}, [3], 6),
        ([ALL, NONE, MIXED], {}, [0, 1], 2),
    ],
    ids=["replaced", "surplus", "oversampled", "given up after max_batches", "not dynamic"],
)
def test_groups_of_equal_rewards_are_replaced_and_surplus_ones_left_out(script, sampler, prompts, sampled):
    rollouts, part = collect(script, **sampler)
    assert rollouts.prompts == [[prompt] for prompt in prompts]
    assert (rollouts.sampled, rollouts.dropped) == (sampled, sampled - len(prompts))
    assert sum(map(len, part.asked)) == 2 * sampled and rollouts.tokens == 2 * sampled * 3
    assert rollouts.rewards.tolist() == [[float(right) for right in script[prompt]] for prompt in prompts]
    assert rollouts.sampled_accuracy == pytest.approx(sum(map(sum, script[:sampled])) / (2 * sampled))


def test_a_group_is_dropped_by_its_rewards_the_punishment_included():
    """Our reading of DAPO's condition, which counts correct responses."""
    how = {"lengths": (3, 10), "prompts": 1, "dynamic": True}
    assert collect([ALL], **how, overlong_buffer=0.2)[0].rewards.tolist() == [[1, 0]]
    assert collect([ALL], **how)[0].prompts == []


@pytest.mark.parametrize(("shift", "of_engine"), [(0.0, [2 * 4] * 4), (0.005, [2 * 4, 8 * 4] * 4)])
def test_a_quarter_of_the_groups_is_scored_or_all_if_the_engine_differs_and_training_is_the_same(
    shift, of_engine, made, tmp_path, monkeypatch
):
    """Eight groups of four; the engine's log-probabilities are off by ``shift``."""
    scored: list[int] = []
    score, generate = module._score_rows, TorchEngine.generate

    def counted(*arguments: Any) -> Any:
        found = score(*arguments)
        scored.append(len(found.log_probs))
        return found

    def off(self: TorchEngine, requests: Any) -> list[Response]:
        return [Response(r.ids, r.finished, [x - shift for x in r.log_probs]) for r in generate(self, requests)]

    monkeypatch.setattr(module, "_score_rows", counted)
    monkeypatch.setattr(TorchEngine, "generate", off)
    one, other = (
        trained(small_study(training={"old_log_probs": source, "prompts_per_step": 8}), tmp_path / source, made)[0]
        for source in ("trainer", "engine")
    )
    assert scored == [8 * 4] * 4 + of_engine
    assert other["mismatch_mean"] == pytest.approx(shift, abs=1e-4)
    for key in ("loss", "ratio_mean", "gradient_norm", "reward_mean", "clip_fraction_low"):
        assert one[key] == pytest.approx(other[key], abs=1e-5), key


def test_methods_that_read_more_than_log_probs_are_scored_by_the_trainer():
    """TEPO's mask needs entropies of the old policy, MPO's heads their predictions."""
    names = ("grpo", "dapo", "mpo", "gspo", "tepo", "mpo_heads", "kl_cov")
    assert [_needs_log_probs_alone(method(name)) for name in names] == [True] * 4 + [False] * 3


def moved(model: PreTrainedModel) -> PreTrainedModel:
    """Another policy: ``model`` with noise on its weights."""
    other, draw = copy.deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=draw).to(parameter.device))
    return other


@pytest.fixture
def by_another_policy(monkeypatch):
    """The engine samples from another policy than the one that is trained."""
    real = TorchEngine.load_weights
    monkeypatch.setattr(TorchEngine, "load_weights", lambda self, model: real(self, moved(model)))


def off_policy(name: str = "grpo", **training: Any) -> Study:
    """Runs with one update per batch, which a mismatch does not stop."""
    return small_study(
        training={"updates_per_batch": 1, "group": 12, "max_mismatch": 10, **training},
        methods={"corrected": {"base": "grpo", "sampler": {"correction_cap": 2.0}}},
        experiments={"headline": {"methods": [name]}},
    )


@pytest.mark.usefixtures("by_another_policy")
def test_the_ratio_is_to_the_trainers_policy_unless_the_method_asks_for_the_engines(made, tmp_path):
    rows = trained(off_policy(), tmp_path / "old", made)[:-1]
    assert min(row["mismatch_mean"] for row in rows) > 0.01
    assert all(row["ratio_mean"] == pytest.approx(1, abs=1e-5) and row["kl_old"] < 1e-9 for row in rows)
    assert trained(off_policy("bypass"), tmp_path / "rollout", made)[0]["ratio_variance"] > 1e-4
    assert 0 < trained(off_policy("corrected"), tmp_path / "weighted", made)[0]["correction_effective_share"] < 1
    with pytest.raises(UserError, match=r"more than 0\.001 \(training\.max_mismatch\)"):
        trained(off_policy(max_mismatch=0.001), tmp_path / "stopped", made)


@pytest.mark.usefixtures("by_another_policy")
def test_the_engine_records_the_policy_that_sampled_and_weights_lead_back_to_the_trainers(made, tmp_path, monkeypatch):
    """The mean of π/μ over samples of μ is 1."""
    taken: list[Rollouts] = []
    prepare = module.prepare
    monkeypatch.setattr(module, "prepare", lambda *given: taken.append(given[0]) or prepare(*given))
    trained(off_policy(steps=1, group=400), tmp_path / "run", made)
    responses = [r for row in taken[0].responses for r in row]
    requests = [Request(p, 0, 12) for p, row in zip(taken[0].prompts, taken[0].responses, strict=True) for _ in row]
    trainer, engine, mask = score_responses(made[1], requests, responses, 1.0)
    assert (trainer - engine)[mask].abs().mean() > 0.01
    of_response = Sampler(correction_cap=1e9, correction_grain="sequence")
    weights = rollout_weights(trainer, engine, mask, of_response)[:, 0].double()
    error = float(weights.std()) / len(weights) ** 0.5
    assert float(weights.mean()) == pytest.approx(1, abs=5 * error) and 0 < error < 0.1
