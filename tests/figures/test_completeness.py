"""Whether a study is finished, what is named of damaged results, and that credentials appear nowhere."""

import re
import shutil

import pytest
import yaml

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.figures.overview import check_complete
from policygrain.figures.page import EACH, samples, write_report
from policygrain.paths import StudyFolder
from policygrain.records import TrackingRecord, write_record
from policygrain.results import StudyResults, evaluated_samples
from policygrain.study import load_study
from policygrain.text import redacted

from ..support.made_up import make_up_tracking
from . import CASES


@pytest.fixture
def finished(copied):
    """The drawn study with a report."""
    (copied / "report.html").touch()
    make_up_tracking(copied, "sqlite:///mlflow.db")
    check_complete(StudyResults(copied))
    return copied


PARTS = ["runs/*/*/summary.json", "runs/*/*/evaluation/*", "start/*/evaluation/*"]


@pytest.mark.parametrize("pattern", [*PARTS, "figures/*", "tables/*", "report.html", "mlflow.json"])
def test_any_result_that_is_gone_is_noticed(pattern, finished):
    for path in finished.glob(pattern):
        content = path.read_bytes()
        path.unlink()
        name = re.escape(str(path.relative_to(finished)))
        with pytest.raises(UserError, match=rf"not finished: 1 of its results are missing, such as {name}"):
            check_complete(StudyResults(finished))
        path.write_bytes(content)


@pytest.mark.parametrize(("name", "kept", "says"), CASES["damaged"])
def test_a_record_that_is_damaged_is_named(name, kept, says, finished, capsys):
    """Cut off after its first lines, or gone."""
    path = finished / "runs" / "tepo" / "seed1" / name
    content = b"".join(path.read_bytes().splitlines(keepends=True)[:kept])
    path.unlink()
    if kept:
        path.write_bytes(content)
    command = ["report", "--config", str(finished / "study.yaml"), "--results", str(finished), "--screen"]
    assert main(command) == 2
    assert re.search(rf"tepo/seed1/{name}: .*{says}", capsys.readouterr().err)


def test_the_first_responses_are_of_a_trained_model_or_else_of_an_initial_one(copied):
    study = StudyResults(copied)
    for begins, model in (("runs", study.matrix.evaluated[0].name), ("start", "start/seed0")):
        (part,) = samples(study)
        assert f" of {model} to each benchmark" in part.note
        written = [
            evaluated_samples(study.folder.evaluation(model), record)["response"].head(EACH)
            for record in study.model_evaluations[model].records
        ]
        assert [row[part.header.index("response")] for row in part.rows] == [text for of in written for text in of]
        for path in copied.glob(f"{begins}/**/records.json"):
            path.unlink()
        study = StudyResults(copied)
    assert not samples(study)


def test_samples_that_are_damaged_are_named(copied):
    for path in copied.glob("runs/**/samples.parquet"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"samples\.parquet: cannot be read as evaluated samples .*Evaluate the model"):
        samples(StudyResults(copied))


SECRET = "s3cr3t-of-mine"
NOWHERE = f"http://someone:{SECRET}@127.0.0.1:9"  # nothing listens on this port


@pytest.mark.parametrize(("uri", "shown"), CASES["addresses"].items())
def test_addresses_are_shown_without_credentials(uri, shown):
    assert redacted(uri) == shown


def test_no_message_record_or_page_holds_credentials(copied, empty_store, root, monkeypatch, capfd):
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
    write_record(folder.tracking, TrackingRecord(uri=redacted(NOWHERE), experiment="1", runs={"tepo": "abc"}))
    write_report(StudyResults(copied), root / "workflow" / "report", folder.report)
    assert SECRET not in folder.report.read_text()
    # A study file is copied into results.
    folder.study.write_text(yaml.safe_dump(yaml.safe_load(folder.study.read_text()) | {"tracking": {"uri": NOWHERE}}))
    with pytest.raises(UserError, match="MLFLOW_TRACKING_PASSWORD") as raised:
        load_study(folder.study)
    assert SECRET not in str(raised.value)
