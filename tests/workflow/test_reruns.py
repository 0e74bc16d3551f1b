"""What runs again after a change: decided by times of files, so those of the finished study here are empty.

What a study names reaches commands as it is, and no shell runs it; for odd folders see test_pipeline.py.
"""

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from policygrain.merging import merge
from policygrain.study import load_study

from ..commands import CASES
from ..support.files import write_lines
from ..support.small import write_study
from ..support.snakemake import call, outputs, planned, snakemake

pytestmark = pytest.mark.slow

DRAWN = CASES["drawn"]
EVERY_MODEL = {"train_arm": 2, "train_arm_0": 2, "evaluate": 3, "track": 1, **DRAWN}
INJECTION = "$(touch x)"


class Study:
    """The study of commands/cases.yaml in a folder of its own; each method changes its file or its results."""

    def __init__(self, root: Path, folder: Path, **changes: object) -> None:
        self.root, self.folder, self.results = root, folder, folder / "results" / "smoke"
        self.file = folder / "study.yaml"
        self.change(**changes)

    def change(self, **changes: object) -> None:
        base = {"base": str(self.root / "tests/support/every_stage.yaml")}
        write_study(self.file, merge(CASES["finished"] | base, changes))

    def finish(self) -> None:
        """Make the files that its jobs declare, all of one time; nothing reads what is in them."""
        for path in outputs(self.root, self.folder, self.file):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        assert (self.results / "report.html").exists()
        newest = max(path.stat().st_mtime for path in (self.root / "workflow/report").iterdir())
        for path in self.results.rglob("*"):
            os.utime(path, (newest, newest))  # not older than the captions; whatever is written later is newer
        shutil.rmtree(self.folder / ".snakemake")

    def planned(self, target: str = "all") -> dict[str, int]:
        return planned(self.root, self.folder, self.file, target)

    def called(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Exit code and output."""
        done = call(self.root, self.folder, self.file, *arguments, **environment)
        said = done.stdout + done.stderr
        assert "Traceback" not in said
        return done.returncode, said


@pytest.fixture(scope="module")
def once(root, tmp_path_factory):
    study = Study(root, tmp_path_factory.mktemp("finished"))
    study.finish()
    return study.folder


@pytest.fixture
def finished(root, once, tmp_path):
    """A copy of the finished study."""
    return Study(root, Path(shutil.copytree(once, tmp_path / "copy")))


def write_model(folder: Path) -> str:
    """What the first job looks for; a model is more."""
    folder.mkdir()
    for name in ("config.json", "tokenizer_config.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return str(folder)


@pytest.mark.parametrize(("changes", "expected"), CASES["changes"], ids=str)
def test_a_change_starts_what_depends_on_it(changes, expected, finished):
    """Written out, so that a wrong declaration of a key is seen; `benchmarks` reads the training problems, too."""
    finished.change(**changes)
    wanted = {rule: count for rule, count in expected.items() if rule != "drawn"}
    assert finished.planned() == (wanted | DRAWN if "drawn" in expected else wanted)


def test_a_dry_run_leaves_no_trace(finished):
    finished.change(training={"learning_rate": 0.5})
    assert finished.planned()["train_arm"]
    finished.change()
    assert finished.planned() == {}


def test_files_that_are_gone_are_made_again_and_nothing_else(finished):
    shutil.rmtree(finished.results / "figures")
    assert finished.planned("figures") == {"figure": 5}
    assert finished.planned() == {"figure": 5, "report_page": 1}
    # Problems are written again only if a job needs them; jobs that read them then find their results up to date.
    shutil.rmtree(finished.results / "data")
    assert finished.planned("figures") == {"figure": 5}
    finished.change(methods={"grpo": {"clip": {"low": 0.1}}})
    needed = {"prepare": 1, "benchmarks": 1, "start_model": 2}
    assert finished.planned() == {**needed, **EVERY_MODEL}


def test_figures_wait_for_runs_that_are_not_evaluated(root, tmp_path):
    more = {"methods": ["grpo"], "seeds": [0, 1, 2], "evaluate": False}
    study = Study(root, tmp_path, seeds=[0, 1, 2], seeds_per_process=1, experiments={"more": more})
    assert study.planned("figures")["train"] == study.planned()["train"]


def test_other_weights_in_the_folder_of_the_start_model_train_again(root, tmp_path):
    study = Study(root, tmp_path, model={"start": write_model(tmp_path / "start")})
    study.finish()
    assert study.planned() == {}
    (tmp_path / "start" / "model.safetensors").write_text("other weights")
    assert study.planned() == EVERY_MODEL


@pytest.fixture
def own(root, tmp_path):
    """A finished study whose problems are JSON Lines files, with its prepared problems."""
    for name in ("own.jsonl", "test.jsonl"):
        rows = [{"id": f"{name}-{i}", "problem": f"{name}: {i} + 1", "answer": str(i + 1)} for i in range(120)]
        write_lines(tmp_path / name, rows)
    write_model(tmp_path / "model")
    data = {"train": ["own.jsonl"], "train_size": 100}
    benchmarks = {"benchmarks": [{"name": "own", "source": "test.jsonl"}]}
    study = Study(root, tmp_path, data=data, evaluation=benchmarks, model={"start": "model"})
    snakemake(root, tmp_path, study.file, "--until", "benchmarks", "--", "all")
    study.finish()
    return study


def test_an_edited_problem_file_schedules_what_is_made_from_it(own):
    assert own.planned() == {}
    for name, again in (
        ("test.jsonl", {"benchmarks": 1, "evaluate": 3, "track": 1, **DRAWN}),
        ("own.jsonl", {"prepare": 1, "benchmarks": 1, **EVERY_MODEL}),
    ):
        with (own.folder / name).open("a") as file:
            file.write('{"id": "more", "problem": "1 + 1", "answer": "2"}\n')
        assert own.planned() == again
        own.finish()


def test_prepared_problems_stand_for_files_that_are_gone(own):
    for name in ("own.jsonl", "test.jsonl"):
        (own.folder / name).unlink()
    assert own.planned("figures") == {} == own.planned()
    shutil.rmtree(own.folder / "results")
    code, said = own.called("all")
    assert code != 0 and "policygrain: data.train[0]: " in said and "own.jsonl: no such dataset file" in said
    assert [path.name for path in (own.results / "logs").iterdir()] == ["prepare.log"], "nothing else was started"


def test_a_study_file_is_read_as_by_the_commands(root, tmp_path):
    """A misspelt key and a repeated one are refused; Snakemake would read 1e-4, and numbers in a list, as text."""
    code, said = Study(root, tmp_path, training={"stepz": 3}).called("all")
    assert code != 0 and "training.stepz: unknown key. Did you mean 'steps'" in said
    study = Study(root, tmp_path, training={"learning_rate": "RATE"})
    text = study.file.read_text().replace("RATE", "1e-4")
    study.file.write_text(text)
    assert study.planned("results/smoke/data/train.jsonl") == {"prepare": 1}
    template = "Q: {problem} # 1e-4\n"
    changes = ["seeds=[7]", "training={learning_rate: 1e-4}", f"prompt={{template: {json.dumps(template)}}}"]
    code, said = study.called("--summary", "--config", *changes, "--", "results/smoke/start/seed7.json")
    assert code == 0 and "start/seed7.json" in said, said
    assert load_study(study.results / "study.yaml").prompt.template == template
    study.file.write_text(text + "seeds: [7]\nseeds: [8]\n")
    code, said = study.called("all")
    assert code != 0 and "'seeds' occurs more than once" in said


def test_values_of_a_study_are_words_of_the_command_line_that_no_shell_runs(root, tmp_path):
    """A study of one run, whose initial model has a name that a shell would run, and that is no model."""
    write_model(tmp_path / INJECTION)
    study = Study(root, tmp_path)
    content = {"base": str(root / "tests/support/every_stage.yaml"), "name": "smoke", "model": {"start": INJECTION}}
    content |= {"seeds": [0], "experiments": {"headline": {"methods": ["tepo"]}}, "figures": ["dynamics"]}
    write_study(study.file, content)
    _, said = study.called("--dry-run", "--printshellcmds", "all")
    lines = re.findall(r"exec .*-m policygrain\.cli (.*)$", said, flags=re.M)
    commanded = {"prepare", "train", "evaluate", "figure", "track", "report"}
    assert commanded == {shlex.split(line)[0] for line in lines}
    code, said = study.called("--keep-going", "--until", "train", "--", "all", HF_HUB_OFFLINE="1")
    assert code != 0 and f"policygrain: model '{INJECTION}' cannot be loaded" in said, said[-3000:]
    assert {path.name for path in (study.results / "logs").iterdir()} == {"prepare.log", "train"}
    assert not list(tmp_path.rglob("x"))
