"""The jobs of a study are those of the Snakefile, and each is known by its marker."""

from __future__ import annotations

import graphlib
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from policygrain.commands.jobs import LOCAL, SUBMITTED, Job, Jobs
from policygrain.merging import merge
from policygrain.paths import StudyFolder
from policygrain.study import load_study, parse_study
from policygrain.study.fingerprint import Fingerprints
from policygrain.study.runs import run_matrix

from ..support.papers import papers
from ..support.small import small_study
from ..support.snakemake import outputs

OTHER_SEEDS = {"headline": {"methods": ["grpo", "dapo"]}, "more": {"methods": ["tepo"], "seeds": [1, 8, 9]}}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several seeds per process": {"seeds_per_process": 2, "seeds": [0, 1, 2, 3, 4]},
    "experiments with other seeds": {"seeds_per_process": 2, "seeds": [0, 1, 2], "experiments": OTHER_SEEDS},
    "initial models take turns": {"seeds": [0, 1, 2], "model": {"starts": 2}, "experiments": OTHER_SEEDS},
    "shards": {"seeds": [0, 1, 2], "evaluation": {"runs_per_engine": 2}},
    "evaluated by the trainer": {"seeds": [0, 1, 2], "evaluation": {"after_training": True}},
    "pretrained": {"seeds": [0, 1], "model": {"start": "some/model"}},
}


def jobs_of(changes: dict[str, Any]) -> Jobs:
    study = small_study(**changes)
    return Jobs(study, StudyFolder(Path("results/small")), Fingerprints(study))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_file_is_made_by_one_job_before_it_is_read(name: str) -> None:
    jobs = jobs_of(VARIANTS[name]).all
    makers = Counter(path for job in jobs for path in job.outputs)
    assert set(makers.values()) == {1}, "no file is made twice"
    assert {path for job in jobs for path in job.inputs} <= set(makers)
    made_by = {path: job.markers for job in jobs for path in job.outputs}
    graph = {job.markers: {made_by[path] for path in job.inputs} for job in jobs}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(jobs)
    assert {job.rule for job in jobs} <= {*SUBMITTED, *LOCAL}


@pytest.mark.parametrize("name", VARIANTS)
def test_each_run_is_trained_once_and_each_evaluated_model_is_evaluated_once(name: str) -> None:
    jobs = jobs_of(VARIANTS[name])
    study, matrix = jobs.study, run_matrix(jobs.study)
    by_rule: dict[str, list[Job]] = {}
    for job in jobs.submitted:
        by_rule.setdefault(job.rule, []).append(job)
    assert Counter(run for job in by_rule["train"] for run in job.runs) == Counter(matrix.runs)
    evaluated = [] if study.evaluation.after_training else matrix.evaluated
    assert Counter(run for job in by_rule["evaluate"] for run in job.runs) == Counter(evaluated)
    seeds = {run.seed for run in matrix.runs} | set(study.seeds)
    made = Counter(start for job in by_rule.get("start_model", []) for start in job.starts)
    assert set(made.values()) <= {1}
    if study.model.start == "tiny":
        assert len(made) == (study.model.starts or len(seeds))
    assert all(len(job.runs) <= study.seeds_per_process for job in by_rule["train"])


@pytest.mark.parametrize("name", VARIANTS)
def test_a_marker_names_its_job(name: str) -> None:
    """A job on a cluster has only the wildcards in its marker to find out what it is."""
    jobs = jobs_of(VARIANTS[name])
    for job in jobs.submitted:
        if job.rule in SUBMITTED:
            pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>.+)", re.escape(jobs.marker(job.rule)))
            match = re.fullmatch(pattern, job.markers[0])
            assert match is not None and match["fingerprint"] == job.fingerprint
            assert jobs.of(job.rule, match.groupdict()) == job


# The smoke study, of which four processes train.
FINISHED = {
    "base": "tests/support/every_stage.yaml",
    "name": "smoke",
    "seeds_per_process": 2,
    "experiments": {
        "headline": {"methods": ["grpo", "tepo"]},
        "more": {"methods": ["none"], "seeds": [0], "vary": {"updates_per_batch": [1, 4]}, "evaluate": False},
    },
    "figures": ["benchmarks", "dynamics", "clip_ratio", "convergence", "pass_at_k"],
}
DRAWN = {"figure": 5, "table": 3, "report_page": 1, "track": 1}
EVERY_MODEL = {"train": 4, "evaluate": 1, **DRAWN}


def smoke_jobs(changes: dict[str, Any]) -> list[Job]:
    study = parse_study(merge(FINISHED, changes), Path("study.yaml"))
    return Jobs(study, StudyFolder(Path("results/smoke")), Fingerprints(study)).all


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"training": {"threads": 2, "checkpoint_every": 2, "micro_batch_tokens": 512}}, {}),
        ({"title": "Another"}, DRAWN),
        ({"methods": {"none": {"summary": "Other words."}}}, DRAWN),
        ({"tracking": {"uri": "sqlite:///x.db"}}, {"report_page": 1, "track": 1}),
        ({"evaluation": {"seed": 8}}, {"evaluate": 1, **DRAWN}),
        (
            {
                "evaluation": {
                    "benchmarks": [
                        {"name": "running_total", "source": "running_total", "size": 12},
                        {"name": "count", "source": "count", "size": 13},
                    ]
                }
            },
            {"prepare": 1, "evaluate": 1, **DRAWN},
        ),
        ({"methods": {"grpo": {"clip": {"low": 0.1}}}}, {"train": 1, "evaluate": 1, **DRAWN}),
        ({"training": {"steps": 4}}, {"train": 4, "evaluate": 1, **DRAWN}),
        ({"training": {"trainer": "trl"}}, {"train": 4, "evaluate": 1, **DRAWN}),
        ({"model": {"lora": {}}}, EVERY_MODEL),
        ({"model": {"dtype": "bfloat16"}}, EVERY_MODEL),
        ({"grader": "math"}, EVERY_MODEL),
        ({"data": {"train_size": 300}}, {"prepare": 1, "start_model": 2, **EVERY_MODEL}),
        ({"prompt": {"template": "solve: {problem}\n"}}, {"start_model": 2, **EVERY_MODEL}),
        ({"data": {"seed": 2}}, {"prepare": 1, "start_model": 2, **EVERY_MODEL}),
        # A run that is left out is not trained again when it comes back; the others are evaluated together.
        ({"experiments": {"headline": {"methods": ["tepo"]}}}, {"evaluate": 1, **DRAWN}),
        ({"experiments": {"headline": {"methods": ["grpo", "tepo", "mpo"]}}}, {"train": 1, "evaluate": 1, **DRAWN}),
        # Initial models take turns, so a seed needs none of its own.
        ({"seeds": [0, 1, 2]}, {"train": 2, "evaluate": 1, **DRAWN}),
        (
            {"seeds": [0, 1, 2], "model": {"starts": 3}},  # `model.starts` decides every run
            {"start_model": 1, "train": 6, "evaluate": 1, **DRAWN},
        ),
    ],
    ids=str,
)
def test_a_change_leaves_only_what_depends_on_it_without_a_marker(
    changes: dict[str, Any], expected: dict[str, int], in_root: Path
) -> None:
    """Written out, so that a wrong declaration of a key is seen. Snakemake starts the jobs without a marker."""
    there = {marker for job in smoke_jobs({}) for marker in job.markers}
    assert Counter(job.rule for job in smoke_jobs(changes) if not set(job.markers) <= there) == expected


@papers
@pytest.mark.slow
def test_the_snakefile_declares_these_files(
    root: Path, in_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With a file of two problems in place of each set; models are not downloaded."""
    (tmp_path / "two.jsonl").write_text('{"problem": "1+1?", "answer": "2"}\n{"problem": "1+2?", "answer": "3"}\n')
    path, paper = tmp_path / "study.yaml", root / "studies" / f"{name}.yaml"
    benchmarks = [{"name": b.name, "source": "two.jsonl"} for b in load_study(paper).evaluation.benchmarks]
    changes = {
        "base": str(paper),
        "name": "counted",
        "data": {"root": str(tmp_path), "train": ["two.jsonl"]},
        "evaluation": {"benchmarks": benchmarks},
    }
    path.write_text(yaml.safe_dump(changes))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    jobs = Jobs.of_results(load_study(path), StudyFolder(Path("results/counted")))
    declared = {str(file.relative_to(tmp_path)) for file in outputs(root, tmp_path, path)}
    assert declared == {file for job in jobs.all for file in job.outputs}
