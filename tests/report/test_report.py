"""What a study is passed on as: the report, an archive, an explanation of a number, a comparison of two studies."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policygrain.analysis.studies import compare_studies
from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.figures import TABLES
from policygrain.figures.catalogue import draw
from policygrain.figures.records import Records
from policygrain.report import write_report
from policygrain.report.explain import explain
from policygrain.report.facts import cost, devices
from policygrain.report.freeze import freeze, thaw
from policygrain.study import Study, load_study
from policygrain.study.runs import run_matrix

from ..support.made_up import make_up

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def study() -> Study:
    return load_study(ROOT / "studies" / "smoke.yaml").model_copy(update={"figures": ["benchmarks", "stress"]})


@pytest.fixture(scope="module")
def results(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smoke study, as if it had been run and drawn; TEPO right on three quarters, GRPO on half."""
    folder = make_up(study, tmp_path_factory.mktemp("study"), {"start": 0, "tepo": 9})
    for name in study.figures:
        draw(name, study, folder, folder / "figures" / name)
    for name in TABLES:
        draw(name, study, folder, folder / "tables" / name)
    return folder


@pytest.fixture(scope="module")
def page(study: Study, results: Path) -> Path:
    where = {"uri": "http://tracking:5000/", "experiment": "7", "runs": {"tepo": "abc", "grpo": "def"}}
    (results / "mlflow.json").write_text(json.dumps(where))
    write_report(study, results, ROOT / "workflow" / "report", results / "report.html")
    return results / "report.html"


def test_the_report_has_everything_and_needs_nothing(page: Path) -> None:
    text = page.read_text()
    assert text.count('src="data:image/png;base64,') == 2
    assert not re.search(r'<(img|script|link)\b[^>]* (src|href)="(https?:)?//', text)
    for words in ("75.0", "c0ffee", "a computer", "TEPO has the best average", "300"):
        assert words in text, words
    assert '<a href="http://tracking:5000/#/experiments/7/runs/abc">TEPO</a>' in text
    assert text.index('id="benchmarks"') < text.index('id="claims"'), "a figure comes first"


def test_cost_in_device_hours(study: Study, results: Path) -> None:
    runs = len(run_matrix(study).runs)
    assert cost(Records(study, results))["in all"] == f"{runs * 6 / 3600:.2f} core-hours"
    assert devices("8 × NVIDIA H100 80GB HBM3") == (8, "GPU") and devices("AMD EPYC 9654 96-Core") == (1, "core")


def test_a_report_of_what_was_not_drawn_says_so(study: Study, results: Path, tmp_path: Path) -> None:
    more = study.model_copy(update={"figures": ["dynamics"]})
    with pytest.raises(UserError, match=r"dynamics\.png: cannot be read .* run `snakemake figures`"):
        write_report(more, results, ROOT / "workflow" / "report", tmp_path / "report.html")


@pytest.mark.parametrize("width", [400, 1400])
def test_the_report_in_a_browser_narrow_and_wide(
    width: int, page: Path, chromium: Callable[..., Any], tmp_path: Path
) -> None:
    script = """<script>addEventListener("load", () => {
      const wide = document.documentElement.scrollWidth, images = [...document.images];
      document.body.dataset.fits = wide <= innerWidth;
      document.body.dataset.loaded = images.every(i => i.complete && i.naturalWidth > 300);
    })</script>"""
    # Lazy images wait until they are scrolled to; here all are wanted.
    copy = tmp_path / "report.html"
    copy.write_text(page.read_text().replace(' loading="lazy"', "").replace("</body>", f"{script}</body>"))
    done = chromium(copy.as_uri(), f"--window-size={width},900", "--virtual-time-budget=3000", "--dump-dom")
    assert 'data-fits="true"' in done.stdout and 'data-loaded="true"' in done.stdout
    assert "CONSOLE" not in done.stderr


def test_what_is_behind_a_number(results: Path) -> None:
    text = explain(results / "tables" / "results.csv", "tepo,run")
    assert text.startswith("tepo, running_total: 75.0 [")
    assert text.count("75.00 percent of 12 problems") == 2 and "key-tepo-1" in text and "commit   c0ffee" in text
    assert "policygrain train --config" in text and "--arm tepo --seed 1" in text
    assert "key-grpo-0" in explain(results / "tables" / "ablation.csv", "grpo")
    claim = explain(results / "tables" / "claims.csv", "mpo_ratio_variance")
    assert "block K=5 below block K=5, joint: -1 [-1, -1] over 2 seeds" in claim
    with pytest.raises(UserError, match="no one column 'x'"):
        explain(results / "tables" / "results.csv", "tepo,x")
    with pytest.raises(UserError, match="no study's table"):
        explain(results / "study.yaml", "tepo,average")


def test_a_frozen_study_is_verified_and_redrawn_elsewhere(results: Path, tmp_path: Path) -> None:
    archive = tmp_path / "study.zip"
    assert main(["freeze", str(results), "--out", str(archive)]) == 0
    assert main(["thaw", str(archive), "--out", str(tmp_path / "again")]) == 0
    for name in ("stress.png", "results.csv", "claims.md"):
        original = next(results.glob(f"*/{name}"))
        assert (tmp_path / "again" / "redrawn" / name).read_bytes() == original.read_bytes(), name
    with pytest.raises(UserError, match="is not empty"):
        thaw(archive, tmp_path / "again")
    # One digit of one record changed.
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(tmp_path / "other.zip", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, content.replace(b"0.75", b"0.85") if name == "evaluation/00.jsonl" else content)
    with pytest.raises(UserError, match=r"checksums: evaluation/00\.jsonl\. Nothing was unpacked"):
        thaw(tmp_path / "other.zip", tmp_path / "third")
    assert not (tmp_path / "third").exists()
    (tmp_path / "torn.zip").write_bytes(archive.read_bytes()[:500])
    with pytest.raises(UserError, match="is not a frozen study"):
        thaw(tmp_path / "torn.zip", tmp_path / "third")
    with pytest.raises(UserError, match=r"no study\.yaml here"):
        freeze(tmp_path, tmp_path / "x.zip")


def test_two_studies_side_by_side(study: Study, results: Path, tmp_path: Path) -> None:
    other = make_up(study, tmp_path / "other", {"start": 0, "tepo": 9, "grpo": 9})
    frame, text = compare_studies(results, other)
    moved = frame.set_index(["arm", "benchmark"])["change"]
    assert moved["grpo", "count"] == pytest.approx(25) and moved["tepo", "count"] == 0
    assert "6 numbers in both; 4 identical; 2 moved beyond noise" in text
    assert len(re.findall(r"^\* grpo +\w+ + \+25\.0", text, flags=re.M)) == 2
