"""The studies with a paper's settings: published values, registered benchmarks, a source for every value."""

import re

import pytest

from policygrain.data.registry import SETS, sampling_of
from policygrain.objective import method
from policygrain.study import load_study
from policygrain.study.runs import run_matrix

papers = pytest.mark.parametrize("name", ["tepo-qwen2.5-7b", "tepo-qwen2.5-math-1.5b", "mpo-r1-distill-1.5b"])


@papers
def test_a_paper_study_has_the_published_settings(in_root, name):
    study = load_study(f"studies/{name}.yaml")
    settings = study.training
    assert (settings.prompts_per_step, settings.group, settings.learning_rate) == (256, 8, 5e-7)
    assert settings.prompts_per_step / settings.updates_per_batch == 32
    assert settings.steps * settings.updates_per_batch == 2400
    # Computation in bfloat16, weights in float32: a step of 5e-7 would be rounded away in bfloat16.
    assert study.model.dtype == "float32" and settings.compute == "bfloat16"
    assert settings.trainer == "trl" and settings.trl == {"fsdp": True}
    assert study.grader == "math" and study.prompt.chat and "\\boxed{" in study.prompt.template
    assert (settings.engine, study.evaluation.engine) == ("vllm", "vllm")
    for arm in run_matrix(study).arms.values():
        own, preset = arm.method(study), arm.method_name.split("_lambda")[0].split("_phi")[0]
        assert own.clip == method(preset).clip, f"{arm.name} has its own clip range"


@papers
def test_the_benchmarks_of_a_paper_study_have_their_registered_sampling(in_root, name):
    study = load_study(f"studies/{name}.yaml")
    assert [SETS[source].n for source in study.data.train] == [None]
    for benchmark in study.evaluation.benchmarks:
        sampling = sampling_of(study, benchmark)
        assert SETS[benchmark.source].n
        assert (sampling.n, sampling.temperature) == ((32, 0.6) if re.match("aime|amc", benchmark.name) else (1, 0.0))
        assert sampling.max_tokens == study.training.max_tokens
    evaluation = study.evaluation.model_copy(update={"registered_sampling": False})
    without = study.model_copy(update={"evaluation": evaluation})
    assert {sampling_of(without, b).n for b in without.evaluation.benchmarks} == {1}


@papers
def test_every_value_of_a_paper_study_names_its_source(root, name):
    """A paper's mark, or `ours`, on each line of model, prompt, data, training and evaluation."""
    section = ""
    for line in (root / "studies" / f"{name}.yaml").read_text().splitlines():
        section = line if re.match(r"\w", line) else section
        if re.match(r"(model|training|evaluation|prompt|data):", section) and re.match(r"  \w+: \S", line):
            assert re.search(r"# (\[(T|E|Er|D|M)\]|ours)", line), line
