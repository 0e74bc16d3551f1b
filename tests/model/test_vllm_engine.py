"""A real vLLM samples what the trainer scores, and takes new weights."""

from __future__ import annotations

import copy
import gc
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.files import read_json_lines
from policygrain.model import open_engine
from policygrain.model.engine import Engine, Request
from policygrain.model.loading import load_model
from policygrain.model.torch_engine import TorchEngine
from policygrain.model.vllm_engine import GIB, frozen_heap, machine_settings
from policygrain.paths import StudyFolder
from policygrain.results import run_metrics

from ..support.engines import needs_vllm, requests_of, save_tiny, score_responses, torch_engine
from ..support.small import SMALL, small_study, train_small, write_study


@pytest.fixture(scope="module")
def vllm_engine(start: Path) -> Iterator[Engine]:
    from policygrain.model.vllm_engine import VllmEngine

    yield VllmEngine(str(start))


def test_the_cache_of_a_gpu_has_room_for_a_step_or_half_of_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (60 * GIB, 80 * GIB))

    def size(**given: Any) -> float:
        return machine_settings(4096, colocated=True, **{"kv_gib": None, "reserved": 20 * GIB} | given)[
            "kv_cache_memory_bytes"
        ] / GIB  # fmt: skip

    assert size() == 20 and size(needed=3 * GIB) == 3 and size(needed=50 * GIB) == 20
    assert size(needed=3 * GIB, kv_gib=30.0) == 30


def test_objects_of_the_trainer_are_no_part_of_a_collection_while_the_engine_works() -> None:
    with frozen_heap():
        assert gc.get_freeze_count() > 10_000
    assert gc.get_freeze_count() == 0


@needs_vllm
@pytest.mark.slow
def test_vllm_samples_what_the_trainer_scores_and_takes_new_weights(start: Path, vllm_engine: Engine) -> None:
    greedy = requests_of(start, temperature=0.0)
    assert [r.ids for r in vllm_engine.generate(greedy)] == [r.ids for r in torch_engine(start).generate(greedy)]
    requests = requests_of(start, temperature=0.7)
    responses = vllm_engine.generate(requests)
    trainer, engine, mask = score_responses(start, requests, responses, 0.7)
    assert (trainer - engine)[mask].abs().max() < 1e-4
    assert [r.ids for r in vllm_engine.generate(requests[::-1])[::-1]] == [r.ids for r in responses]

    # All weights change: with old weights, or a prefix cached under them, the responses would differ.
    model, tokenizer = load_model(str(start))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    vllm_engine.load_weights(model)
    greedy_new = vllm_engine.generate(greedy)
    assert [r.ids for r in greedy_new] == [
        r.ids for r in TorchEngine(model, tokenizer.eos_token_id, tokenizer.pad_token_id).generate(greedy)
    ]
    vllm_engine.load_weights(load_model(str(start))[0])
    assert [r.ids for r in vllm_engine.generate(requests)] == [r.ids for r in responses]


class Stale:
    """An engine that ignores new weights: all of them, or only the output layer that is tied to the embeddings."""

    name = "stale"

    def __init__(self, engine: Engine, tied: bool) -> None:
        self.engine, self.tied, self.generate, self.sleep = engine, tied, engine.generate, engine.sleep

    def load_weights(self, model: Any) -> None:
        if self.tied:
            self.engine.load_weights(SimpleNamespace(state_dict=lambda: dict(model.named_parameters())))  # type: ignore[arg-type]


@needs_vllm
@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True], ids=["no weights", "without the tied head"])
def test_a_run_stops_when_its_engine_has_old_weights_and_can_be_resumed(
    tied: bool, start: Path, vllm_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All runs share one engine: before a run loads its first weights, the engine holds those of another run."""
    study = small_study(training={"engine": "vllm", "steps": 4, "max_mismatch": 1e-3})
    data, fresh = start.parents[1] / "data", load_model(str(start))[0]

    def train(engine: Engine, name: str) -> Path:
        vllm_engine.load_weights(fresh)
        monkeypatch.setattr("policygrain.train.steps.open_engine", lambda *_, **__: engine)
        return train_small(study, tmp_path / name, data, start)

    undisturbed = read_json_lines(train(vllm_engine, "undisturbed") / "metrics.jsonl")
    assert max(r["kl_initial"] for r in undisturbed[:-1]) > 1e-4, "the weights must have moved"
    assert max(r["mismatch_max"] for r in undisturbed[:-1]) < 1e-4

    with pytest.raises(UserError, match=r"step \d: trainer and engine differ by 0.*training.max_mismatch"):
        train(Stale(vllm_engine, tied), "stopped")
    before = read_json_lines(tmp_path / "stopped" / "metrics.jsonl")
    assert before == undisturbed[: len(before)]
    assert (tmp_path / "stopped" / "checkpoints" / f"step{len(before):05d}").exists()
    after = read_json_lines(train(vllm_engine, "stopped") / "metrics.jsonl")
    assert after == undisturbed


@needs_vllm
@pytest.mark.slow
def test_rollouts_follow_the_weights(made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step samples from the weights of that step, and a second run takes the engine over: trainer and engine agree
    on what was sampled.
    """
    monkeypatch.setattr(open_engine, "_running", [])
    content = copy.deepcopy(SMALL)
    content["training"] |= {"engine": "vllm", "steps": 3, "learning_rate": 3e-3}
    content["model"] |= {"starts": 1}
    config = write_study(tmp_path / "study.yaml", content)
    results = StudyFolder(Path(shutil.copytree(made[0].parent, tmp_path / "results")))
    assert main(["train", "--config", str(config), "--seeds", "0", "1", "--results", str(results.path)]) == 0
    for seed in (0, 1):
        rows = run_metrics(results.run("grpo", seed))[:-1]
        assert len(rows) == 3 and max(r["kl_initial"] for r in rows) > 1e-4, "the weights must have moved"
        assert max(r["mismatch_max"] for r in rows) < 1e-4


@needs_vllm
@pytest.mark.slow
def test_a_small_cache_has_room_for_short_sequences_of_a_model_with_a_long_context(tmp_path: Path) -> None:
    from policygrain.model.vllm_engine import VllmEngine

    save_tiny(tmp_path, intermediate=32, layers=2, context=4096)
    per_token = 2 * 2 * 32 * 4  # keys and values of two layers, 32 numbers of 4 bytes
    engine = VllmEngine(str(tmp_path), kv_gib=1024 * per_token / 2**30)
    assert len(engine.generate([Request([3, 4, 5], 0, 20)])[0].ids) <= 20
    with pytest.raises(
        UserError, match=r"a sequence of 4003 tokens is longer than vLLM can sample.*: \d+ tokens\. .*training\.kv_gib"
    ):
        engine.generate([Request([3, 4, 5], 0, 4000)])
    with pytest.raises(UserError, match=r"vLLM with a KV cache of .*\(training\.kv_gib\).* no room for a sequence"):
        VllmEngine(str(tmp_path), kv_gib=1 / 2**30)
