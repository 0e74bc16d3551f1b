"""Studies of the papers' settings can be planned as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from policygrain.evaluate.protocol import sampling_of
from policygrain.methods import method
from policygrain.study import Study, load_study
from policygrain.study.arms import plan
from policygrain.tasks import registry

PAPERS = ("tepo-qwen2.5-7b", "tepo-qwen2.5-math-1.5b", "mpo-r1-distill-1.5b")
papers = pytest.mark.parametrize("name", PAPERS)


def paper(name: str) -> Study:
    """The study file, wherever problem sets are."""
    return load_study(f"studies/{name}.yaml", files=False)


# ---- the studies ----------------------------------------------------------------------------------------------------


@papers
def test_a_paper_s_study_has_published_settings_and_none_of_the_laptop_s(in_root: Path, name: str) -> None:
    study = paper(name)
    settings = study.training
    assert (settings.prompts_per_step, settings.group, settings.learning_rate) == (256, 8, 5e-7)
    assert (
        settings.prompts_per_step / settings.updates_per_batch == 32
        and settings.steps * settings.updates_per_batch == 2400
    )
    assert study.model.dtype == "bfloat16" and study.verifier == "math" and study.prompt.chat
    assert (settings.engine, study.evaluation.engine) == ("vllm", "vllm")
    assert "\\boxed{" in study.prompt.template
    for arm in plan(study):
        own, preset = arm.method(study), arm.method_name.split("_lambda")[0].split("_phi")[0]
        assert own.clip == method(preset).clip, f"{arm.name} has a band of its own"


@papers
def test_a_paper_s_benchmarks_are_registered_and_sampled_as_the_registry_says(in_root: Path, name: str) -> None:
    study = paper(name)
    assert [registry.dataset(source).role for source in study.data.train] == ["training"]
    for benchmark in study.evaluation.benchmarks:
        sampling = sampling_of(study, benchmark)
        assert registry.dataset(benchmark.source).role == "benchmark"
        assert (sampling.n, sampling.temperature) == ((32, 0.6) if re.match("aime|amc", benchmark.name) else (1, 0.0))
        assert sampling.max_tokens == study.training.max_tokens
    without = study.model_copy(
        update={"evaluation": study.evaluation.model_copy(update={"registered_sampling": False})}
    )
    assert {sampling_of(without, b).n for b in without.evaluation.benchmarks} == {1}


def test_every_value_of_a_paper_s_study_says_where_it_is_from(root: Path) -> None:
    """A paper's mark, or `ours`, on each line of model, prompt, data, training and evaluation."""
    for name in PAPERS:
        section = ""
        for line in (root / "studies" / f"{name}.yaml").read_text().splitlines():
            section = line if re.match(r"\w", line) else section
            if re.match(r"(model|training|evaluation|prompt|data):", section) and re.match(r"  \w+: \S", line):
                assert re.search(r"# (\[(T|E|Er|D|M)\]|ours)", line), line


def dry_run(study: dict[str, Any], folder: Path, root: Path) -> dict[str, int]:
    """Jobs by rule of a whole study, as Snakemake plans it in an empty folder, without a network."""
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(root / "Snakefile"), "--directory", str(folder)]
    command += ["--dry-run", "--quiet", "rules", "--configfile", str(folder / "study.yaml"), "--", "all"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", done.stdout + done.stderr, re.M)}


@papers
@pytest.mark.pipeline
def test_a_paper_s_study_is_planned_whole(root: Path, in_root: Path, tmp_path: Path, name: str) -> None:
    """A file of two problems stands for every set; models are named and not fetched."""
    (tmp_path / "two.jsonl").write_text('{"problem": "1+1?", "answer": "2"}\n{"problem": "1+2?", "answer": "3"}\n')
    study = paper(name)
    benchmarks = [{"name": b.name, "source": "two.jsonl"} for b in study.evaluation.benchmarks]
    counted = dry_run(
        {
            "base": str(root / "studies" / f"{name}.yaml"),
            "data": {"root": str(tmp_path), "train": ["two.jsonl"]},
            "evaluation": {"benchmarks": benchmarks},
        },
        tmp_path,
        root,
    )
    assert counted["train"] == len(plan(study).runs)
