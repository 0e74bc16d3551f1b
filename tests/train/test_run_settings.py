"""Which keys of a study file, and which inputs, supersede a run in its folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from policygrain.paths import DataFolder, RunFolder
from policygrain.records import write_record
from policygrain.study import Study
from policygrain.study.fingerprint import Fingerprints
from policygrain.study.runs import Arm, run_matrix
from policygrain.study.sections import decides, leaves
from policygrain.trainers.run import claim, run_config

from ..support.all_keys import other_value, reference, value_at, with_values
from ..support.small import small_study

KEYS = {key: info for key, info in leaves(Study) if key not in ("base", "methods")}


def settings_of(study: Study) -> dict[str, Any]:
    return Fingerprints(study).run_settings(Arm("mine"), 5)


@pytest.mark.parametrize("key", KEYS)
def test_a_run_has_the_settings_that_decide_it_and_no_other(key: str) -> None:
    """The initial model and the data are inputs: keys that only these depend on change them, not the run's settings."""
    other = with_values(**{key: other_value(key, KEYS[key], value_at(reference(), key.split(".")))})
    assert (settings_of(other) != settings_of(reference())) == ("run" in (decides(KEYS[key]) or []))


@pytest.mark.parametrize("what", ["nothing", "train", "validation", "initial model", "a setting"])
def test_a_run_is_superseded_by_other_settings_and_inputs(what: str, made: tuple[Path, Path], tmp_path: Path) -> None:
    def config(study: Study, data: Path, start: Path) -> Any:
        return run_config(study, next(iter(run_matrix(study).arms.values())), 1, str(start), DataFolder(data))

    study, run = small_study(), RunFolder(tmp_path / "run")
    write_record(run.config, config(study, *made))
    run.metrics.write_text("steps")
    data, start = (Path(shutil.copytree(path, tmp_path / path.name)) for path in made)
    if what == "initial model":
        (start / "start.json").unlink()
        (start / "generation_config.json").write_text("{}")
    elif what == "a setting":
        study = small_study(training={"group": 8})
    elif what != "nothing":
        (data / f"{what}.jsonl").write_text("")
    claim(run, config(study, data, start))
    assert run.metrics.exists() == (what == "nothing")
    assert len([*run.path.glob("superseded-*")]) == (what != "nothing")
