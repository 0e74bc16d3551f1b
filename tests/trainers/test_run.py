"""One run from its settings to its summary: which run a folder belongs to, when it has ended, what supersedes it."""

import contextlib
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from policygrain.errors import Stopped, UserError
from policygrain.evaluate.evaluation import evaluate_study
from policygrain.paths import DataFolder, RunFolder, StudyFolder
from policygrain.results import run_config, run_metrics, run_summary
from policygrain.train import loop
from policygrain.train.stopping import Stop
from policygrain.trainers.run import check_final_model, claim

from ..support.files import flip_bit, snapshot
from ..support.small import assert_same_end, small_study, train_small

A, B = small_study(), small_study(training={"updates_per_batch": 3})


def products(run: Path) -> dict[str, bytes]:
    """Every file that belongs to a run and not to the folder."""
    return {name: data for path in RunFolder(run).products for name, data in snapshot(path).items()}


@pytest.fixture(scope="module")
def fresh(made, tmp_path_factory):
    """B in a folder of its own."""
    return train_small(B, tmp_path_factory.mktemp("fresh") / "run", *made)


@pytest.fixture(scope="module")
def after_aba(made, tmp_path_factory):
    """A folder in which A, B and A were trained."""
    run = tmp_path_factory.mktemp("aba") / "run"
    for study in (A, B, A):
        train_small(study, run, *made)
    return run


def test_an_ended_run_is_left_and_each_superseded_one_keeps_its_products_in_a_folder_of_its_own(
    made, fresh, after_aba, tmp_path, capsys
):
    """The fourth of A, B, A, B trains from its beginning: no checkpoint of A is continued, nor the first B."""
    run = Path(shutil.copytree(after_aba, tmp_path / "run"))
    a, b = run_config(RunFolder(run)).key, run_config(RunFolder(fresh)).key
    third, stamp = products(run), (run / "metrics.jsonl").stat().st_mtime_ns
    train_small(A, run, *made)
    assert products(run) == third and (run / "metrics.jsonl").stat().st_mtime_ns == stamp
    train_small(B, run, *made)
    assert f"run with other settings, which was moved to {run}/superseded-{a}-2" in capsys.readouterr().err
    first, second, other = (run / f"superseded-{name}" for name in (f"{a}-1", f"{a}-2", f"{b}-1"))
    assert {*run.glob("superseded-*")} == {first, second, other} and products(second) == third
    for ended, same in ((run, fresh), (other, fresh), (first, second)):
        assert_same_end(ended, same)


class Killed(BaseException):
    """What no handler of errors catches."""


def kill_after(calls: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Raise `Killed` instead of the file operation after so many; returns the list of operations, which grows."""
    done: list[str] = []

    def counted(name: str, operation: Callable[..., object]) -> Callable[..., object]:
        def called(path: Path, *arguments: object, **named: object) -> object:
            if len(done) == calls:
                raise Killed(name)
            done.append(f"{name} {path.name}")
            return operation(path, *arguments, **named)

        return called

    for name in ("rename", "replace", "unlink", "mkdir"):
        monkeypatch.setattr(Path, name, counted(name, getattr(Path, name)))
    return done


@pytest.mark.slow
def test_a_run_killed_at_any_file_operation_ends_like_any_other(made, fresh, after_aba, tmp_path, monkeypatch):
    """Superseding, checkpoints, model and summary included; the products that are moved are lost at none of them."""
    expected = products(after_aba)
    for calls in itertools.count():
        run = Path(shutil.copytree(after_aba, tmp_path / f"run{calls}"))
        with monkeypatch.context() as patch:
            done = kill_after(calls, patch)
            with contextlib.suppress(Killed):
                train_small(B, run, *made)
                break
        train_small(B, run, *made)
        assert_same_end(run, fresh)
        (aside,) = run.glob(f"superseded-{run_config(RunFolder(after_aba)).key}-2")
        assert products(aside) == expected, done
        assert len([*run.glob("superseded-*")]) == 3
        assert [path.name for path in run.rglob(".*")] == []
        shutil.rmtree(run)
    assert "rename summary.json" in done and "rename run.json" in done
    assert done.index("rename run.json") > done.index("rename summary.json") and calls == len(done)


@pytest.mark.parametrize("content", [None, "7", "[]", "{}", "not JSON", '{"key": null}'])
def test_without_a_readable_run_json_no_other_summary_counts(content, fresh, after_aba, tmp_path):
    run = Path(shutil.copytree(after_aba, tmp_path / "run"))
    (run / "run.json").unlink()
    if content is not None:
        (run / "run.json").write_text(content)
    before = products(run)
    claim(RunFolder(run), run_config(RunFolder(fresh)))
    assert products(run) == {}, "the run begins as in a new folder"
    (aside,) = set(run.glob("superseded-*")) - {run / path.name for path in after_aba.glob("superseded-*")}
    assert products(aside) == before


def test_how_a_run_is_held_and_saved_may_change_in_its_middle(made, tmp_path):
    """After a failure for lack of memory, say: with smaller micro-batches the run continues where it was."""
    whole = run_metrics(RunFolder(train_small(A, tmp_path / "whole", *made)))
    run = tmp_path / "run"
    with pytest.raises(Stopped):
        train_small(A, run, *made, stop=Stop(deadline=0.0))
    for name in ("run.json", "summary.json", "metrics.jsonl", "timings.jsonl"):  # of writers that were killed
        (run / f".{name}.tmp").write_text("half")
    for folder in (".model", "checkpoints/.step"):
        (run / folder).mkdir()
        (run / folder / "another.safetensors").write_text("half")
    held = {"micro_batch_tokens": 60, "kv_gib": 0.5, "checkpoint_every": 3}
    held |= {"max_mismatch": 0.1, "activation_checkpointing": True}
    rows = run_metrics(RunFolder(train_small(small_study(training=held), run, *made)))
    assert not list(run.glob("superseded-*")) and not list(run.rglob(".*"))
    assert not (run / "model" / "another.safetensors").exists()
    assert rows[0] == whole[0] and rows[-1]["total_tokens"] == whole[-1]["total_tokens"]
    for row, expected in zip(rows[:-1], whole[:-1], strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-3, abs=1e-5)
    ended = products(run)
    train_small(small_study(training={"micro_batch_tokens": 90, "threads": 2, "checkpoint_every": 3}), run, *made)
    assert products(run) == ended, "an ended run is left as it is"


@pytest.fixture(scope="module")
def undeleted(made, tmp_path_factory):
    """B, as if its process had been killed between the summary and the removal of the checkpoints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("policygrain.trainers.run.remove_old", lambda *_: None)
        return train_small(B, tmp_path_factory.mktemp("undeleted") / "run", *made)


def test_an_ended_run_has_a_summary_that_agrees_with_its_metrics_and_no_checkpoints(made, fresh, undeleted, tmp_path):
    last, final = run_metrics(RunFolder(fresh))[-1], run_summary(RunFolder(fresh)).final
    assert final.validation_accuracy == last["validation_accuracy"] and final.tokens == last["total_tokens"]
    assert (final.updates, final.samples) == (last["total_updates"], last["total_samples"]) == (4 * 3, 4 * 4 * 4)
    run = Path(shutil.copytree(undeleted, tmp_path / "run"))
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"step00002", "step00003"}
    train_small(B, run, *made)
    assert_same_end(run, fresh)
    assert not list((run / "checkpoints").iterdir())


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped bit": lambda model: flip_bit(model / "model.safetensors"),
    "tokenizer missing": lambda model: (model / "tokenizer.json").unlink(),
    "model missing": shutil.rmtree,
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_final_model_is_trained_again_from_a_checkpoint_that_was_kept(
    how, made, fresh, undeleted, tmp_path, monkeypatch
):
    run, update = Path(shutil.copytree(undeleted, tmp_path / "run")), Mock(wraps=loop.update)
    DAMAGE[how](run / "model")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(loop, "update", Mock(side_effect=Killed))
        train_small(B, run, *made)
    assert not (run / "summary.json").exists(), "a run that is trained has not ended"
    monkeypatch.setattr(loop, "update", update)
    train_small(B, run, *made)
    assert update.call_count == 3, "the last step alone, of three updates"
    assert_same_end(run, fresh)
    assert snapshot(run / "model") == snapshot(fresh / "model") and not list(run.glob("superseded-*"))


def test_a_damaged_model_is_neither_evaluated_nor_trained_from(made, fresh, tmp_path):
    results = StudyFolder(tmp_path)
    run = RunFolder(Path(shutil.copytree(fresh, results.run("grpo", 0).path)))
    assert check_final_model(run) == run_summary(run).model_digest
    flip_bit(run.model / "model.safetensors")
    for call in (
        lambda: check_final_model(run),
        lambda: evaluate_study(B, {"grpo/seed0": run.model}, DataFolder(made[0]), results),
    ):
        with pytest.raises(UserError, match=r"seed0/model: its files are not those that summary\.json names"):
            call()
    assert not results.evaluation("grpo/seed0").path.exists()
    torn = Path(shutil.copytree(made[1], tmp_path / "torn"))
    weights = torn / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"torn: its files are not those that start\.json names"):
        train_small(A, tmp_path / "run", made[0], torn)
    (torn / "start.json").unlink()
    with pytest.raises(UserError, match="torn' cannot be loaded"):
        train_small(A, tmp_path / "run", made[0], torn)
