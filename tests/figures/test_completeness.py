"""Whether a study is finished, what is named of damaged results, and that credentials appear nowhere."""

import re
import shutil

import pytest
import yaml

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.figures.overview import check_complete
from policygrain.figures.page import samples
from policygrain.paths import StudyFolder
from policygrain.results import StudyResults
from policygrain.study import load_study
from policygrain.text import redacted

from . import CASES


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("runs/tepo/seed1/summary.json", "tepo/seed1"),
        ("runs/*/*/evaluation/records.json", "the evaluation of grpo/seed0"),
        ("start/*/evaluation/*", "the evaluation of start/seed0"),
    ],
)
def test_any_result_that_is_gone_is_noticed(pattern, name, copied):
    check_complete(StudyResults(copied))
    for path in copied.glob(pattern):
        path.unlink()
    with pytest.raises(UserError, match=rf"not finished: \d of its results are missing, such as {name}"):
        check_complete(StudyResults(copied))


@pytest.mark.parametrize(("name", "kept", "says"), CASES["damaged"])
def test_a_record_that_is_damaged_is_named(name, kept, says, copied, capsys):
    """Cut off after its first lines, or gone."""
    path = copied / "runs" / "tepo" / "seed1" / name
    content = b"".join(path.read_bytes().splitlines(keepends=True)[:kept])
    path.unlink()
    if kept:
        path.write_bytes(content)
    command = ["report", "--config", str(copied / "study.yaml"), "--results", str(copied), "--screen"]
    assert main(command) == 2
    assert re.search(rf"tepo/seed1/{name}: .*{says}", capsys.readouterr().err)


def test_the_first_responses_are_of_a_trained_model_or_else_of_an_initial_one(copied):
    for begins, model in (("runs", "grpo/seed0"), ("start", "start/seed0")):
        (part,) = samples(StudyResults(copied))
        assert f" of {model} to each benchmark" in part.note
        assert {row[part.header.index("response")][: len(model)] for row in part.rows} == {model}
        for path in copied.glob(f"{begins}/**/records.json"):
            path.unlink()
    assert not samples(StudyResults(copied))


SECRET = "s3cr3t-of-mine"
NOWHERE = f"http://someone:{SECRET}@127.0.0.1:9"  # nothing listens on this port


@pytest.mark.parametrize(("uri", "shown"), CASES["addresses"].items())
def test_addresses_are_shown_without_credentials(uri, shown):
    assert redacted(uri) == shown


def test_no_message_or_record_holds_credentials(copied, empty_store, monkeypatch, capfd):
    """Of a server that is not reached, and of a SQLite file, whose address may have some that SQLite ignores."""
    folder, track = StudyFolder(copied), ["track", "--config", str(copied / "study.yaml"), "--results", str(copied)]
    folder.tracking.unlink(missing_ok=True)
    for name, value in {"MAX_RETRIES": "0", "TIMEOUT": "2"}.items():
        monkeypatch.setenv(f"MLFLOW_HTTP_REQUEST_{name}", value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    assert main(track) == 2 and not folder.tracking.exists()
    said = capfd.readouterr()
    assert "tracking.uri: MLflow at http://127.0.0.1:9 does not answer" in said.err and "Traceback" not in said.err
    assert SECRET not in said.out + said.err
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{shutil.copy(empty_store, copied.parent)}?password={SECRET}")
    assert main(track) == 0 and SECRET not in folder.tracking.read_text()
    # A study file is copied into results.
    folder.study.write_text(yaml.safe_dump(yaml.safe_load(folder.study.read_text()) | {"tracking": {"uri": NOWHERE}}))
    with pytest.raises(UserError, match="MLFLOW_TRACKING_PASSWORD") as raised:
        load_study(folder.study)
    assert SECRET not in str(raised.value)
