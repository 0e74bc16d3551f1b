"""Between sampling and the loss: rewards, dynamic sampling, and log-probabilities of the old policy and the engine."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from policygrain.clock import Clock
from policygrain.model.engine import Rollout
from policygrain.model.torch_engine import TorchEngine
from policygrain.objective import Sampler
from policygrain.objective.loss import rollout_weights
from policygrain.study import Study
from policygrain.study.schema import Training
from policygrain.train import loop
from policygrain.train.policy import Policy
from policygrain.train.rollouts import overlong

from ..support.engines import score_responses
from ..support.scripted import Scripted
from ..support.small import study_of, trained

CASES = yaml.safe_load(Path(__file__).with_name("groups.yaml").read_text())


def test_the_overlong_punishment_by_hand():
    assert [overlong(n, 10, 0.2) for n in (1, 8, 9, 10)] == pytest.approx([0, 0, 0.5, 1])  # L_max 10, B 2
    assert overlong(10, 10, 0.0) == 0


@pytest.mark.parametrize(("script", "sampler", "prompts", "sampled"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_groups_of_equal_rewards_are_replaced_and_surplus_ones_left_out(script, sampler, prompts, sampled):
    script = [(group[0] == "1", group[1] == "1") for group in script.split()]
    lengths = (3, 10) if "overlong_buffer" in sampler else (3, 3)
    engine, settings = Scripted(script, lengths), Training(prompts_per_step=2, group=2, max_tokens=10)
    rollouts, counts = engine.collector(settings, Sampler(**sampler)).collect(None, 0, Clock())
    assert [rollout.prompt for rollout in rollouts[::2]] == [[prompt] for prompt in prompts]
    assert (counts["groups_drawn"], counts["groups_dropped"]) == (sampled, sampled - len(prompts))
    assert sum(map(len, engine.asked)) == 2 * sampled and counts["sampled_tokens"] == sampled * sum(lengths)
    assert [rollout.correct for rollout in rollouts] == [right for prompt in prompts for right in script[prompt]]
    drawn = [script[i % len(script)] for i in range(sampled)]
    assert counts["sampled_accuracy"] == pytest.approx(sum(map(sum, drawn)) / (2 * sampled))
    assert all(r.reward == r.correct - (len(r.ids) == 10) for r in rollouts)


@pytest.fixture
def engine_is_off(monkeypatch):
    """The engine's log-probabilities are off by 0.005, and are recorded only where they are asked for."""
    generate = TorchEngine.generate

    def off(self: TorchEngine, requests: Any) -> list[Rollout]:
        rollouts = generate(self, requests)
        for request, rollout in zip(requests, rollouts, strict=True):
            rollout.log_probs = [x - 0.005 for x in rollout.log_probs] if request.log_probs else []
        return rollouts

    monkeypatch.setattr(TorchEngine, "generate", off)


@pytest.fixture
def sizes(monkeypatch):
    """Numbers of responses that the policy scores, call by call."""
    found: list[int] = []
    score = Policy.score
    monkeypatch.setattr(Policy, "score", lambda self, r, *_: found.append(len(r)) or score(self, r, *_))
    return found


@pytest.mark.usefixtures("engine_is_off")
@pytest.mark.parametrize(("name", "scored"), [("grpo", 8), ("mpo", 8), ("tepo", 32), ("mpo_heads", 32)])
def test_the_old_policy_is_the_trainers_or_the_engines_as_the_study_says(name, scored, made, tmp_path, sizes):
    """Eight groups of four. TEPO's mask reads entropies of the old policy, MPO's heads predict: all by the trainer."""
    rows, counts = {}, {}
    own = {"sampler": {"dynamic": False}, "mtp_heads": {"warmup_batches": 0}}
    for source in ("trainer", "engine"):
        sizes.clear()
        study = study_of(name, own, old_log_probs=source, prompts_per_step=8, steps=1, updates_per_batch=1)
        rows[source], counts[source] = trained(study, tmp_path / source, made)[0], sizes[0]
    assert counts == {"trainer": 8, "engine": scored}
    assert all(row["mismatch_mean"] == pytest.approx(0.005, abs=1e-4) for row in rows.values())
    assert rows["trainer"]["ratio_mean"] == pytest.approx(1, abs=1e-5) and rows["engine"]["ratio_mean"] > 1.003
    assert rows["trainer"]["reward_mean"] == rows["engine"]["reward_mean"]


@pytest.mark.parametrize("updates", [1, 4])
@pytest.mark.parametrize("name", ["grpo", "dapo", "tepo", "mpo", "mpo_heads", "sapo"])
def test_a_first_minibatch_that_its_update_scores_trains_as_before(name, updates, made, tmp_path, monkeypatch, sizes):
    """Up to rounding; some metrics are of other groups, and TEPO's mask, a sign of rounding before, is another."""
    study = study_of(name, {"mtp_heads": {"warmup_batches": 0}}, steps=2, prompts_per_step=8, updates_per_batch=updates)
    at_once = trained(study, tmp_path / "at once", made)
    monkeypatch.setattr(loop, "scored_by_update", lambda *_: False)
    before = trained(study, tmp_path / "before", made)
    assert sizes[0] == (8 if updates == 1 else 24) and sizes[2] == 32
    for row in (*at_once, *before):
        for metric in ("kl_initial", "mismatch_mean", "mismatch_max", "mismatch_kl", "mask_share"):
            row.pop(metric, None)
    assert at_once == [pytest.approx(row, rel=1e-3, abs=1e-5) for row in before]


@pytest.mark.usefixtures("engine_is_off")
def test_some_tokens_of_each_step_are_compared_with_an_engine_that_records_what_is_asked_for(made, tmp_path):
    """The only group of four that it is asked for may be in the minibatch that its update scores."""
    for count in (1, 2, 4):
        study = study_of("grpo", {"sampler": {"dynamic": False}}, steps=6, prompts_per_step=4, updates_per_batch=count)
        for row in trained(study, tmp_path / str(count), made)[:-1]:
            assert row["mismatch_mean"] == pytest.approx(0.005, abs=1e-4)


@pytest.fixture
def by_another_policy(monkeypatch):
    """The engine samples from another policy than the one that is trained: its model with noise on its weights."""
    real = TorchEngine.load_weights

    def moved(self: TorchEngine, model: Any) -> None:
        other, draw = copy.deepcopy(model), torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(0.03 * torch.randn(parameter.shape, generator=draw).to(parameter.device))
        real(self, other)

    monkeypatch.setattr(TorchEngine, "load_weights", moved)


def off_policy(base: str = "grpo", own: Any = None, **changes: Any) -> Study:
    """Runs with one update per batch, which a mismatch does not stop."""
    return study_of(base, own, **{"updates_per_batch": 1, "group": 12, "max_mismatch": 10} | changes)


@pytest.mark.usefixtures("by_another_policy")
def test_the_ratio_is_to_the_trainers_policy_unless_the_method_asks_for_the_engines(made, tmp_path):
    rows = trained(off_policy(), tmp_path / "old", made)[:-1]
    assert min(row["mismatch_mean"] for row in rows) > 0.01
    assert all(row["ratio_mean"] == pytest.approx(1, abs=1e-5) and row["kl_old"] < 1e-9 for row in rows)
    assert trained(off_policy("bypass"), tmp_path / "rollout", made)[0]["ratio_variance"] > 1e-4
    corrected = off_policy("grpo", {"sampler": {"correction_cap": 2.0}})
    assert 0 < trained(corrected, tmp_path / "weighted", made)[0]["correction_effective_share"] < 1


@pytest.mark.usefixtures("by_another_policy")
def test_the_engine_records_the_policy_that_sampled_and_weights_lead_back_to_the_trainers(made, tmp_path, monkeypatch):
    """The mean of π/μ over samples of μ is 1."""
    taken: list[list[Rollout]] = []
    make = loop.make_batch
    monkeypatch.setattr(loop, "make_batch", lambda rollouts, *given: taken.append(rollouts) or make(rollouts, *given))
    trained(off_policy(steps=1, group=400), tmp_path / "run", made)
    trainer, engine, mask = score_responses(made[1], taken[0], 1.0)
    assert (trainer - engine)[mask].abs().mean() > 0.01
    of_response = Sampler(correction_cap=1e9, correction_grain="sequence")
    weights = rollout_weights(trainer, engine, mask, of_response)[:, 0].double()
    error = float(weights.std()) / len(weights) ** 0.5
    assert float(weights.mean()) == pytest.approx(1, abs=5 * error) and 0 < error < 0.1
