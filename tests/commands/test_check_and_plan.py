"""What `policygrain check` finds, on made-up clusters too, and what `policygrain plan` counts and prints."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from policygrain.analysis import measures
from policygrain.analysis.statistics import seeds_to_show, student
from policygrain.cli import main
from policygrain.commands.check import check_study, notes, requests
from policygrain.commands.plan import config_of, constants, estimate, hours_of, parameters, power_text
from policygrain.errors import UserError
from policygrain.results import StudyResults
from policygrain.study import Study
from policygrain.study.schema import Model, TinyModel
from policygrain.train.start_model import character_tokenizer, tiny_model

from ..support.files import write_lines
from ..support.small import SMALL, small_study, write_study
from . import CASES

QUESTIONS = [{"id": str(i), "problem": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(5)]


def of_file(folder: Path, size: int = 3, **changes: Any) -> Study:
    write_lines(folder / "own.jsonl", QUESTIONS)
    data = {"root": str(folder), "train": ["own.jsonl"], "train_size": size, "validation_size": 2}
    return small_study(data=data, model={"tiny": {"vocabulary": 300}, "warm_start": {"steps": 0}}, **changes)


def test_a_start_without_a_tokenizer_is_said_at_once(tmp_path):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 99}')
    with pytest.raises(UserError, match=r"is not a model with a tokenizer: tokenizer_config\.json is missing"):
        check_study(small_study(model={"warm_start": {"steps": 0}, "start": str(tmp_path)}))


def test_ids_of_a_benchmark_are_unique(tmp_path):
    """Scores are grouped by them; problems after those that are used do not count."""
    write_lines(tmp_path / "twice.jsonl", [*QUESTIONS[:2], {**QUESTIONS[2], "id": QUESTIONS[0]["id"]}])
    benchmark = {"name": "a", "source": "twice.jsonl"}
    check_study(of_file(tmp_path, evaluation={"benchmarks": [benchmark | {"size": 2}]}))
    with pytest.raises(UserError, match="a: 2 problems have the id '0'"):
        check_study(of_file(tmp_path, evaluation={"benchmarks": [benchmark]}))


def test_what_is_allowed_and_probably_not_meant_is_said(tmp_path):
    for study, expected in (
        (of_file(tmp_path, size=50), "own.jsonl has 5 problems, fewer than train_size + validation_size (52)"),
        (small_study(training={"updates_per_batch": 1}), "all importance ratios are 1"),
        (small_study(training={"steps": 8, "off_policy_steps": 2}), "a quarter of the batches or more are sampled by"),
    ):
        [note] = notes(study)
        assert expected in note


def test_prepare_checks_the_study_before_it_writes(tmp_path):
    """It is the first job of a workflow."""
    study = write_study(tmp_path / "study.yaml", SMALL | {"prompt": {"chat": True}})
    assert main(["prepare", "--config", str(study), "--results", str(tmp_path)]) == 2
    assert not (tmp_path / "data").exists()
    assert main(["check", str(study)]) == 2


NOTHING = "#!/bin/sh\n"
REFUSES = "#!/bin/sh\necho 'allocation failure: Requested node configuration is not available' >&2; exit 1\n"


@pytest.fixture
def check(root, tmp_path, monkeypatch, capfd):
    """`policygrain check --slurm` with a made-up SLURM and a profile: (exit code, everything printed)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def run(profile: str = "{}", sbatch: str = NOTHING) -> tuple[int, str]:
        for name, text in {"sbatch": sbatch, "squeue": NOTHING}.items():  # the executor looks for squeue
            Path(name).write_text(text)
            Path(name).chmod(0o755)
        Path("profile.yaml").write_text(profile)
        code = main(["check", str(root / "studies/smoke.yaml"), "--slurm", "--profile", "profile.yaml"])
        printed = capfd.readouterr()
        assert "Traceback" not in printed.err
        return code, printed.out + printed.err

    return run


@pytest.mark.parametrize(("profile", "expected"), CASES["profiles"])
def test_a_profile_that_snakemake_or_its_executor_refuses(check, profile, expected):
    code, said = check(profile)
    assert code == 2 and expected in said, said


def test_slurm_is_asked_and_what_it_refuses_is_named_with_the_rule(check):
    profile = "set-resources: {train: {slurm_partition: gpu, gpu: 8, mem: 90GB, runtime: 2h}}"
    options = "train: --partition=gpu -t 120 --mem 90000 --cpus-per-task=1 --gpus=8\n"
    assert check(profile)[0] == 0
    code, said = check(profile, sbatch=REFUSES)
    assert code == 2 and options in said
    assert "profile.yaml, train: allocation failure: Requested node configuration is not available" in said


def test_options_are_those_that_the_executor_gives_with_its_settings(tmp_path):
    resources = {"slurm_partition": "g", "slurm_account": 7, "gpu_model": "a100", "slurm_extra": "--exclude='my node'"}
    profile = {"slurm-qos": "long", "slurm-reservation": "mine", "set-resources": {"train": resources}}
    (tmp_path / "profile.yaml").write_text(yaml.safe_dump(profile))
    words = {rule: set(words) for rule, words in requests(tmp_path / "profile.yaml", small_study()).items()}
    assert words["evaluate"] == {"--qos=long", "--reservation=mine", "--ntasks=1", "--cpus-per-task=1"}
    own = {"--partition=g", "--account=7", "--gpus=a100:1", "--exclude=my node"}
    assert words["train"] == words["evaluate"] | own


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
