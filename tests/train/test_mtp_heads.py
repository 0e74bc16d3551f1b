"""Prediction heads in training: their warm-up, its record, and that a resumed run does not repeat it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from policygrain.errors import Stopped
from policygrain.model.engine import Request, Response
from policygrain.model.loading import load_model
from policygrain.model.torch_engine import TorchEngine
from policygrain.objective import method
from policygrain.paths import RunFolder
from policygrain.records import MtpHeadsRecord, read_record
from policygrain.results import run_metrics
from policygrain.train import loop
from policygrain.train.policy import build_heads
from policygrain.train.stopping import Stop

from ..support.small import assert_same_end, small_study, train_small


def heads_study(warmup_batches: int, **mtp: Any) -> Any:
    return small_study(
        training={"steps": 2},
        methods={"own": {"base": "mpo_heads", "mtp_heads": {"warmup_batches": warmup_batches, **mtp}}},
        experiments={"headline": {"methods": ["own"]}},
    )


def test_only_a_ratio_that_looks_ahead_has_heads_and_their_weights_follow_the_seed(made: tuple[Path, Path]) -> None:
    model, _ = load_model(str(made[1]))
    assert build_heads(model, method("grpo"), seed=0) is None
    before = torch.get_rng_state()
    one, same, other = (build_heads(model, method("mpo_heads"), seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before), "the random state of the run is left as it is"
    weights = [torch.cat([p.flatten() for p in heads.parameters()]) for heads in (one, same, other) if heads]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_the_warm_up_lowers_the_heads_loss_and_is_recorded(made: tuple[Path, Path], tmp_path: Path) -> None:
    run = RunFolder(train_small(heads_study(12, learning_rate=1e-2), tmp_path / "run", *made))
    record = read_record(MtpHeadsRecord, run.mtp_heads, "")
    assert len(record.losses) >= 12 and record.seconds > 0
    assert sum(record.losses[-3:]) < 0.9 * sum(record.losses[:3])
    model, _ = load_model(str(made[1]))
    heads = build_heads(model, method("mpo_heads"), seed=0)
    assert heads is not None
    assert record.parameters == sum(p.numel() for p in heads.parameters())
    assert all(row["future_loss"] > 0 for row in run_metrics(run)[:-1])


def test_the_warm_up_leaves_prompts_and_sampling_seeds_of_training_as_they_are(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    """The first batch is sampled from the initial model, whatever the heads have learned."""
    sampled = [
        run_metrics(RunFolder(train_small(heads_study(batches), tmp_path / str(batches), *made)))[0]
        for batches in (0, 3)
    ]
    for key in ("sampled_accuracy", "response_length_mean", "entropy_old", "validation_accuracy", "total_tokens"):
        assert sampled[0][key] == sampled[1][key]
    assert sampled[0]["future_loss"] != sampled[1]["future_loss"]


def test_the_warm_up_samples_with_seeds_of_its_own(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate, seeds = TorchEngine.generate, []

    def noted(self: TorchEngine, requests: list[Request]) -> list[Response]:
        if requests[0].log_probs:  # validation asks for none
            seeds.append({request.seed for request in requests})
        return generate(self, requests)

    monkeypatch.setattr(TorchEngine, "generate", noted)
    train_small(heads_study(3), tmp_path / "run", *made)
    # Three batches of the warm-up; training samples more prompts where groups of equal rewards were dropped.
    assert [len(batch) for batch in seeds[:3]] == [16] * 3 and len(seeds) >= 3 + 2
    assert len(set().union(*seeds)) == sum(len(batch) for batch in seeds)


def test_a_resumed_run_does_not_warm_up_again(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = heads_study(2)
    whole = train_small(study, tmp_path / "whole", *made)
    with pytest.raises(Stopped):
        train_small(study, tmp_path / "run", *made, stop=Stop(deadline=0.0))
    monkeypatch.setattr(loop, "warm_up", None)
    assert_same_end(train_small(study, tmp_path / "run", *made), whole)
