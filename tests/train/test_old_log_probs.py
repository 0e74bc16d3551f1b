"""Log-probabilities of the old policy from the engine: where they agree with the trainer's, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from policygrain.files import read_json_lines
from policygrain.model.engine import Response
from policygrain.model.torch_engine import TorchEngine
from policygrain.objective import method
from policygrain.train import rollout_batch as module
from policygrain.train.rollout_batch import _needs_log_probs_alone

from ..support.small import small_study, train_small

ENGINE = {"old_log_probs": "engine", "prompts_per_step": 8}


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that the trainer scores for the old policy."""
    rows: list[int] = []
    real = module._score_rows

    def counted(policy, sequences, settings, chosen):  # type: ignore[no-untyped-def]
        found = real(policy, sequences, settings, chosen)
        rows.append(len(found.log_probs))
        return found

    monkeypatch.setattr(module, "_score_rows", counted)
    return rows


def test_a_quarter_of_the_groups_is_scored_and_training_is_the_same_up_to_rounding(
    made: tuple[Path, Path], tmp_path: Path, scored: list[int]
) -> None:
    runs = {
        source: read_json_lines(
            train_small(small_study(training={**ENGINE, "old_log_probs": source}), tmp_path / source, *made)
            / "metrics.jsonl"
        )
        for source in ("trainer", "engine")
    }
    assert scored == [8 * 4] * 4 + [2 * 4] * 4, "of 8 groups of 4: all, or 2 of them"
    one, other = runs["trainer"][0], runs["engine"][0]
    for key in ("loss", "ratio_mean", "gradient_norm", "reward_mean", "clip_fraction_low"):
        assert one[key] == pytest.approx(other[key], abs=1e-5), key


def test_an_engine_that_differs_is_not_believed(
    made: tuple[Path, Path], tmp_path: Path, scored: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = TorchEngine.generate

    def off(self, requests):  # type: ignore[no-untyped-def]
        return [Response(r.ids, r.finished, [x - 0.005 for x in r.log_probs]) for r in real(self, requests)]

    monkeypatch.setattr(TorchEngine, "generate", off)
    run = train_small(small_study(training=ENGINE), tmp_path / "run", *made)
    assert scored == [2 * 4, 8 * 4] * 4, "checked on a quarter, then all are scored"
    first = read_json_lines(run / "metrics.jsonl")[0]
    assert first["mismatch_mean"] == pytest.approx(0.005, abs=1e-4) and first["ratio_mean"] == pytest.approx(
        1, abs=0.02
    )


@pytest.mark.parametrize(
    ("name", "alone"),
    [
        ("grpo", True),
        ("dapo", True),
        ("mpo", True),
        ("gspo", True),
        ("tepo", False),
        ("mpo_heads", False),
        ("kl_cov", False),
    ],
)
def test_methods_that_read_more_than_log_probs_are_scored_by_the_trainer(name: str, alone: bool) -> None:
    """TEPO's mask needs entropies of the old policy, MPO's heads their predictions."""
    assert _needs_log_probs_alone(method(name)) is alone
