"""What `policygrain plan` counts, with the arithmetic written out, and what it prints."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest

from policygrain.analysis import measures
from policygrain.analysis.statistics import seeds_to_show, student
from policygrain.cli import main
from policygrain.commands.plan import config_of, constants, estimate, hours_of, parameters, power_text
from policygrain.errors import UserError
from policygrain.results import StudyResults
from policygrain.study.schema import Model, TinyModel
from policygrain.train.start_model import character_tokenizer, tiny_model

from ..support.small import small_study


def test_tokens_and_hours_by_hand():
    """Four batches of 4 prompts and 16 responses of 12 tokens; all are scored, a quarter by the reference, too."""
    studies = [small_study(training={"validate_every": 1000, "epochs": epochs}) for epochs in (1, 2)]
    one, twice = (estimate(study, "cpu")["rules"]["train"] for study in studies)
    texts = 4 * 26.4 + 16 * 12
    assert one["sampled"] == 4 * 16 * 12 + 2 * 10 * 12  # validation problems before and after
    assert (one["scored"], one["trained"]) == pytest.approx((5 * texts, 4 * texts))
    assert twice["trained"] == pytest.approx(2 * one["trained"]) and twice["sampled"] == one["sampled"]
    # 2N FLOPs a token sampled or scored, 6N or 8N a token trained on.
    device = {"sample": 10.0, "train": 20.0}
    for checkpointing, per_token in ((False, 6), (True, 8)):
        flops = 2 * 180 * 7 / 10 + (2 * 180 * 5 + per_token * 180 * 3) / 20
        assert hours_of(np.array([7, 5, 3]), 180, device, checkpointing) == pytest.approx(flops / 3600)


def test_parameters_by_hand():
    # h = 4, i = 6, one layer, 2 query heads and 1 key head of 2, vocabulary 10.
    shape = {"hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2}
    shape |= {"num_key_value_heads": 1, "vocab_size": 10}
    # q and o 4×4, k and v 4×2; feed-forward 3×4×6; output 10×4; the embedding, which is looked up.
    assert parameters(shape) == 2 * 16 + 2 * 8 + 72 + 40 + 40
    assert parameters(shape | {"tie_word_embeddings": True}) == 160
    with pytest.raises(UserError, match="lacks 'vocab_size'"):
        parameters({key: value for key, value in shape.items() if key != "vocab_size"})
    with pytest.raises(UserError, match="has experts"):
        parameters(shape | {"num_experts": 8})


def test_parameters_are_those_on_the_hub_but_for_norms_and_biases():
    known = {"Qwen/Qwen2.5-0.5B": 494_032_768, "Qwen/Qwen2.5-1.5B": 1_543_714_304, "Qwen/Qwen2.5-7B": 7_615_616_512}
    for name, published in (known | {"deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000}).items():
        count = parameters(config_of(Model(start=name), constants()["models"]))
        assert 0.999 * published < count < published


def test_parameters_of_a_tiny_model_are_those_of_the_built_one(tmp_path):
    spec = TinyModel(hidden=64, intermediate=96, layers=3, heads=2)
    built = tiny_model(spec, character_tokenizer(), seed=0)
    expected = sum(p.numel() for p in built.parameters() if p.dim() == 2)
    assert parameters(config_of(Model(tiny=spec), {})) == expected
    built.config.save_pretrained(tmp_path)
    assert parameters(config_of(Model(start=str(tmp_path)), {})) == expected
    with pytest.raises(UserError, match="'some/thing' is neither a folder"):
        config_of(Model(start="some/thing"), {})


def test_evaluation_costs_the_same_in_jobs_of_its_own_and_after_training():
    plain = small_study(seeds=[0, 1, 2])
    after = plain.model_copy(update={"evaluation": plain.evaluation.model_copy(update={"after_training": True})})
    plans = [estimate(study, "cpu")["rules"] for study in (plain, after)]
    for plan, key in itertools.product(plans, ("jobs", "sampled", "hours")):
        assert plan["all"][key] == pytest.approx(sum(of[key] for rule, of in plan.items() if rule != "all"))
    assert plans[0]["all"]["sampled"] == pytest.approx(plans[1]["all"]["sampled"])
    assert plans[0]["train"]["sampled"] < plans[1]["train"]["sampled"]


def test_a_plan_names_its_assumptions(in_root, capsys):
    seven = ["plan", "studies/tepo-qwen2.5-7b.yaml"]
    assert main([*seven, "--device", "h100"]) == 0
    assert "(assumed, not measured)" in capsys.readouterr().out
    hours = []
    for study in (seven[1], "studies/tepo-qwen2.5-math-1.5b.yaml"):
        assert main(["plan", study, "--json"]) == 0
        hours.append(json.loads(capsys.readouterr().out)["rules"]["all"]["hours"])
    assert hours[0] > hours[1], "a larger model costs more"
    assert main(["plan", "config.yaml", "--device", "h1000"]) == 2
    assert "Did you mean 'h100'" in capsys.readouterr().err


def test_seeds_that_a_margin_needs(tmp_path, monkeypatch):
    """Of one comparison with records, and of a study that plans two of them with a margin."""
    found = student([1.0, 2.0, 6.0])
    pair = SimpleNamespace(arm=SimpleNamespace(settings=(("off_policy_steps", 8),)))
    one = SimpleNamespace(pair=pair, identical=False, auc=found, sampled=None, greedy=student([1.0]))
    same = SimpleNamespace(pair=pair, identical=True, auc=student([0.0, 0.0]), sampled=None, greedy=None)
    equal = SimpleNamespace(pair=pair, identical=False, auc=student([2.0, 2.0]), sampled=None, greedy=None)
    monkeypatch.setattr(measures, "contrasts", lambda _: [one, same, equal])  # two equal differences have no spread
    planned = {"methods": ["token", "sequence", "none"], "reference": "token", "margin": 3.0}
    study = small_study(seeds=[0, 1], experiments={"headline": planned})
    plan, results = estimate(study, "cpu"), StudyResults(tmp_path, study)
    row = power_text(plan, study, results).splitlines()[2].split(" | ")
    assert row[:2] == ["| off_policy_steps 8", "auc"] and row[2].startswith(f"{found.spread:.1f} [")
    seeds = [seeds_to_show(effect, found.spread, comparisons=2) for effect in (1.0, 2.0, 3.0, 4.0)]
    assert [cell.split()[0] for cell in row[3:]] == [str(n) for n in seeds]
    per_run = sum(plan["rules"][rule]["hours"] for rule in ("train", "evaluate")) / 6
    assert float(row[3].split(": ")[1].removesuffix(" h")) == pytest.approx(2 * (seeds[0] or 0) * per_run, rel=0.1)
    monkeypatch.setattr(measures, "contrasts", lambda _: [same])
    with pytest.raises(UserError, match=f"no comparison in {tmp_path} has two seeds"):
        power_text(plan, study, results)
