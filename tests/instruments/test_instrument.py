"""What both instruments share: wrong sections, several seeds, and measurements that are kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from policygrain.errors import UserError
from policygrain.instruments import instrument
from policygrain.instruments.estimators import Estimation
from policygrain.instruments.instrument import Instrument, made_from, measure_starts
from policygrain.instruments.rounds import Round
from policygrain.measurements import EstimatorsRecord
from policygrain.paths import DataFolder, StudyFolder
from policygrain.records import write_record
from policygrain.study import Study
from policygrain.study.checks import check_instruments, check_prompts
from policygrain.study.fingerprint import Fingerprints

from ..support.made_up import made_up_estimators
from ..support.small import small_study

GOOD: dict[str, Any] = {"reference": "dapo", "methods": ["dapo", "tepo"]}


@pytest.mark.parametrize("section", ["estimators", "rounds"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["dapo", "tepo", "dapo"]}, r"{}\.methods: 'dapo' occurs twice"),
        ({"methods": ["dapo", "teppo"]}, r"{}\.methods: no method is called 'teppo'\. Did you mean 'tepo'"),
        ({"reference": "tepo", "methods": ["dapo"]}, r"{}\.reference: 'tepo' is not one of {}\.methods"),
        ({"methods": ["dapo", "heads"]}, r"{}\.methods: 'heads' needs prediction heads"),
        ({"methods": ["dapo", "a3po"]}, r"{}\.methods: 'a3po' needs the age of rollouts"),
        ({"updates": [4, 4]}, r"{}\.updates: 4 occurs twice"),
        ({"steps": [1, 2, 1]}, r"{}\.steps: 1 occurs twice"),
    ],
)
def test_wrong_sections(section: str, changes: dict[str, Any], message: str) -> None:
    heads = {"base": "mpo", "ratio": {"future": "mtp_heads"}}
    with pytest.raises(UserError, match=message.replace("{}", section)):
        small_study(**{section: GOOD | changes}, methods={"heads": heads})


def test_numbers_that_no_measurement_is_possible_with() -> None:
    for key in ("batches", "true_prompts"):
        with pytest.raises(UserError, match=rf"estimators\.{key}: .*greater than or equal to 3"):
            check_instruments(small_study(estimators=GOOD | {key: 2}))
    with pytest.raises(UserError, match="17 updates of a batch of 16"):
        check_instruments(small_study(rounds=GOOD, training={"updates_per_batch": 17}))


def test_more_prompts_than_there_are() -> None:
    study = small_study(estimators=GOOD | {"batches": 10}, rounds=GOOD)
    assert study.estimators is not None and study.rounds is not None
    with pytest.raises(UserError, match=r"estimators\.true_prompts: needs 400 prompts, but there are 200 training"):
        check_prompts("estimators", study.estimators, 200)
    with pytest.raises(UserError, match=r"rounds\.updates: needs 48 prompts, but there are 40"):
        check_prompts("rounds", study.rounds, 40)
    check_prompts("rounds", study.rounds, 48)


def test_what_a_stopped_process_has_measured_is_kept(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three initial models; the process is stopped in the second, and then one of the problems files changes."""
    study = small_study(estimators=GOOD, seeds=[0, 1, 2])
    results, measured = StudyFolder(tmp_path), []
    shutil.copytree(made[0], results.data.path)
    for seed in study.seeds:
        shutil.copytree(made[1], results.start(seed).path)

    def measure(kind: object, study: Study, seed: int, start: str, data: DataFolder, out: Path) -> EstimatorsRecord:
        if seed == 1 and len(measured) < 2:
            measured.append("stopped")
            raise KeyboardInterrupt
        measured.append(seed)
        record = made_up_estimators(Fingerprints(study), seed).model_copy(update={"made_from": made_from(start, data)})
        write_record(out, record)
        return record

    monkeypatch.setattr(instrument, "measure", measure)

    def all_of(done: str) -> list[int]:
        return [r.seed for r in measure_starts(Estimation, study, [0, 1, 2], results, tmp_path / "done" / done)]

    with pytest.raises(KeyboardInterrupt):
        all_of("one.json")
    assert all_of("one.json") == [0, 1, 2] and measured == [0, "stopped", 1, 2]
    ended = json.loads((tmp_path / "done" / "one.json").read_text())["results"]
    assert list(ended) == ["estimators/seed0", "estimators/seed1", "estimators/seed2"]
    validation = results.data.validation
    validation.write_text("\n".join(validation.read_text().splitlines()[:-1]) + "\n")
    assert all_of("two.json") == [0, 1, 2] and measured[4:] == [0, 1, 2], "other problems"


@pytest.mark.parametrize("kind", [Estimation, Round])
def test_a_study_without_the_section(kind: type[Instrument[Any]], tmp_path: Path) -> None:
    name = kind.name
    with pytest.raises(UserError, match=rf"{name}: this study has no such section\. Add `{name}: \{{reference"):
        list(measure_starts(kind, small_study(), [0], StudyFolder(tmp_path)))
