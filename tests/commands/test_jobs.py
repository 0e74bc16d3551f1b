"""The jobs of a study are those of the Snakefile; stages called by hand: what they make, leave and refuse."""

import graphlib
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from policygrain.cli import main
from policygrain.commands.jobs import LOCAL, SUBMITTED, Jobs
from policygrain.files import read_json
from policygrain.merging import merge
from policygrain.paths import StudyFolder
from policygrain.study import Study, load_study, parse_study
from policygrain.study.fingerprint import Fingerprints
from policygrain.study.runs import run_matrix

from ..support.files import write_lines
from ..support.small import SMALL, small_study, write_study
from ..support.snakemake import outputs
from . import CASES

every_variant = pytest.mark.parametrize("name", CASES["variants"])


def jobs_of(study: Study) -> Jobs:
    return Jobs(study, StudyFolder(Path("results") / study.name), Fingerprints(study))


@every_variant
def test_every_file_is_made_by_one_job_before_it_is_read(name):
    jobs = jobs_of(small_study(**CASES["variants"][name])).all
    makers = Counter(path for job in jobs for path in job.outputs)
    assert set(makers.values()) == {1}, "no file is made twice"
    assert {path for job in jobs for path in job.inputs} <= set(makers)
    made_by = {path: job.markers for job in jobs for path in job.outputs}
    graph = {job.markers: {made_by[path] for path in job.inputs} for job in jobs}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(jobs)
    assert {job.rule for job in jobs} <= {*SUBMITTED, *LOCAL}


@every_variant
def test_each_run_is_trained_once_and_each_evaluated_model_is_evaluated_once(name):
    study = small_study(**CASES["variants"][name])
    matrix, submitted = run_matrix(study), jobs_of(study).submitted
    runs = {rule: Counter(run for job in submitted if job.rule == rule for run in job.runs) for rule in SUBMITTED}
    assert runs["train"] == Counter(matrix.runs)
    assert runs["evaluate"] == Counter([] if study.evaluation.after_training else matrix.evaluated)
    made = Counter(start for job in submitted if job.rule == "start_model" for start in job.starts)
    assert set(made.values()) <= {1}
    if study.model.start == "tiny":
        assert len(made) == (study.model.starts or len({run.seed for run in matrix.runs} | set(study.seeds)))
    assert all(len(job.runs) <= study.seeds_per_process for job in submitted if job.rule == "train")


@every_variant
def test_a_marker_names_its_job(name):
    """A job on a cluster has only the wildcards in its marker to find out what it is."""
    jobs = jobs_of(small_study(**CASES["variants"][name]))
    for job in jobs.submitted:
        if job.rule in SUBMITTED:
            pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>.+)", re.escape(jobs.marker(job.rule)))
            match = re.fullmatch(pattern, job.markers[0])
            assert match is not None and match["fingerprint"] == job.fingerprint
            assert jobs.of(job.rule, match.groupdict()) == job


@pytest.mark.parametrize(("changes", "expected"), CASES["changes"], ids=str)
def test_a_change_leaves_only_what_depends_on_it_without_a_marker(changes, expected, in_root):
    """Written out, so that a wrong declaration of a key is seen. Snakemake starts the jobs without a marker."""
    one, other = (jobs_of(parse_study(merge(CASES["finished"], c), Path("study.yaml"))).all for c in ({}, changes))
    there = {marker for job in one for marker in job.markers}
    wanted = {rule: count for rule, count in expected.items() if rule != "drawn"}
    assert Counter(job.rule for job in other if not set(job.markers) <= there) == (
        wanted | CASES["drawn"] if "drawn" in expected else wanted
    )


@pytest.mark.slow
def test_the_snakefile_declares_these_files(root, tmp_path, monkeypatch):
    """With a file of two problems in place of each set; models are not downloaded."""
    write_lines(tmp_path / "two.jsonl", [{"problem": f"1+{i}?", "answer": str(1 + i)} for i in (1, 2)])
    paper = root / "studies" / "tepo-qwen2.5-7b.yaml"
    benchmarks = [{"name": b.name, "source": "two.jsonl"} for b in load_study(paper).evaluation.benchmarks]
    changes = {"data": {"root": str(tmp_path), "train": ["two.jsonl"]}, "evaluation": {"benchmarks": benchmarks}}
    path = write_study(tmp_path / "study.yaml", {"base": str(paper), "name": "counted", **changes})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    jobs = Jobs.of_results(load_study(path), StudyFolder(Path("results/counted")))
    declared = {str(file.relative_to(tmp_path)) for file in outputs(root, tmp_path, path)}
    assert declared == {file for job in jobs.all for file in job.outputs}


UNTRAINED = {**SMALL["model"], "warm_start": {"steps": 0, "mixed_steps": 0}}


def configured(folder: Path, **changes: Any) -> list[str]:
    return ["--config", str(write_study(folder / "study.yaml", {**SMALL, **changes}))]


@pytest.mark.parametrize(("command", "says"), CASES["stages"])
def test_what_cannot_be_done_is_said_before_anything_is_computed(command, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*command, *configured(tmp_path), "--results", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert says in error and "Traceback" not in error and not (tmp_path / "run").exists()


def test_a_start_model_without_a_tokenizer_is_one_message(tmp_path, capsys):
    start = tmp_path / "start"
    start.mkdir()
    (start / "config.json").write_text('{"model_type": "qwen2"}')
    command = ["train", *configured(tmp_path, model={"start": str(start)}), "--run-dir", str(tmp_path / "run")]
    assert main([*command, "--arm", "grpo", "--seed", "0"]) == 2
    error = capsys.readouterr().err
    assert str(start) in error and "Traceback" not in error


def test_a_start_model_is_made_again_when_training_problems_change(tmp_path):
    start = tmp_path / "start" / "seed0"
    made: dict[str, tuple[str, int]] = {}
    for name, seed in (("first", 1), ("again", 1), ("changed", 2)):
        options = [*configured(tmp_path, model=UNTRAINED, data={**SMALL["data"], "seed": seed})]
        options += ["--results", str(tmp_path)]
        done = tmp_path / f"{name}.json"
        assert main(["prepare", *options]) == 0 == main(["start-model", *options, "--done", str(done)])
        record = read_json(start / "start.json")
        assert read_json(done)["results"] == {"seed0": record["digest"]}
        made[name] = record["settings"]["training_data"], (start / "model.safetensors").stat().st_mtime_ns
    assert made["again"] == made["first"], "it was up to date"
    assert all(x != y for x, y in zip(made["changed"], made["first"], strict=True))


def test_the_stages_of_a_study_by_hand(tmp_path, monkeypatch):
    """In results/NAME, where the next stage finds what the one before has made; a second time nothing changes."""
    monkeypatch.chdir(tmp_path)
    training = {**SMALL["training"], "steps": 1, "validate_every": 1}
    config = configured(tmp_path, model=UNTRAINED, training=training)
    results = StudyFolder(Path("results") / SMALL["name"])
    for command in (["prepare"], ["start-model"], ["train", "--arm", "grpo"], ["evaluate", "--shard", "00"]):
        assert main([*command, *config]) == 0
    run, start = results.run("grpo", 0), results.start(0)
    assert not run.data.path.exists() and not run.start.path.exists(), "those of the study were there"
    for place in (start.path / "model.safetensors", run.summary, results.evaluation("grpo/seed0").record):
        assert place.exists(), place
    before = run.metrics.read_bytes()
    assert main(["train", *config]) == 0 and main(["evaluate", *config]) == 0
    assert run.metrics.read_bytes() == before
