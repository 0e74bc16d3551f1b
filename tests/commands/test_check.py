"""What `policygrain check` finds before anything is spent: in a study, and on made-up clusters with one fault each."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from policygrain.cli import main
from policygrain.commands.check import check_study, notes, requests
from policygrain.errors import UserError
from policygrain.study import Study

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
    write_lines(tmp_path / "twice.jsonl", [*QUESTIONS[:2], QUESTIONS[0]])
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
    words = {rule: set(words) for rule, words in requests(tmp_path / "profile.yaml").items()}
    assert words["evaluate"] == {"--qos=long", "--reservation=mine", "--ntasks=1", "--cpus-per-task=1"}
    own = {"--partition=g", "--account=7", "--gpus=a100:1", "--exclude=my node"}
    assert words["train"] == words["evaluate"] | own
