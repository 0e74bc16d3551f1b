"""Jobs of a study, as Snakemake counts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from policygrain.cost.workload import jobs
from policygrain.study.runs import run_matrix

from ..support.papers import PAPERS, paper, papers


def dry_run(study: dict[str, Any], folder: Path, root: Path) -> dict[str, int]:
    """Jobs by rule of a study, by `snakemake --dry-run` in an empty folder without a network."""
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(root / "Snakefile"), "--directory", str(folder)]
    command += ["--dry-run", "--quiet", "rules", "--configfile", str(folder / "study.yaml"), "--", "all"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", done.stdout + done.stderr, re.M)}


@papers
@pytest.mark.pipeline
def test_snakemake_plans_as_many_jobs_as_are_estimated(root: Path, in_root: Path, tmp_path: Path, name: str) -> None:
    """With a file of two problems in place of each set; models are not downloaded."""
    (tmp_path / "two.jsonl").write_text('{"problem": "1+1?", "answer": "2"}\n{"problem": "1+2?", "answer": "3"}\n')
    study, parts = paper(name), 1 + PAPERS.index(name)
    benchmarks = [{"name": b.name, "source": "two.jsonl"} for b in study.evaluation.benchmarks]
    counted = dry_run(
        {
            "base": str(root / "studies" / f"{name}.yaml"),
            "name": f"{name}-counted",
            "data": {"root": str(tmp_path), "train": ["two.jsonl"]},
            "evaluation": {"benchmarks": benchmarks, "parts": parts},
        },
        tmp_path,
        root,
    )
    evaluation = study.evaluation.model_copy(update={"parts": parts})
    expected = jobs(study.model_copy(update={"evaluation": evaluation}))
    assert counted.pop("total") == sum(expected.values())
    figures = sum(count for rule, count in counted.items() if rule in ("figure", "table"))
    assert figures == expected.pop("figures")
    assert all(counted.get(rule, 0) == count for rule, count in expected.items()), counted
    assert counted["train"] == len(run_matrix(study).runs)
