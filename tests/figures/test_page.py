"""The report in a browser and the overview: what they show, and that nothing of a user can break them."""

import base64
import dataclasses
import hashlib
import html
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.figures import report
from policygrain.provenance import devices
from policygrain.results import StudyResults
from policygrain.study import parse_study
from policygrain.study.runs import run_matrix

from ..support.made_up import make_up
from . import CASES

CAPTIONS = Path(__file__).parents[2] / "workflow" / "report"


@pytest.fixture(scope="module")
def page(results, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "report.html"
    report.write_report(StudyResults(results), CAPTIONS, out)
    return out.read_text()


def test_the_report_has_everything_and_needs_nothing(page):
    assert page.count('src="data:image/svg+xml;base64,') == 2
    assert not re.search(r'<(img|script|link)\b[^>]* (src|href)="(https?:)?//', page)
    for words in ("75.0", "c0ffee", "a computer", "TEPO − GRPO", "generated tokens", "<h3>Accuracy of the initial "):
        assert words in page, words
    order = [page.index(name) for name in ('class="overview"', 'id="benchmarks"', 'id="figures"', 'id="contrasts"')]
    assert order == sorted(order)
    # Intervals are not broken between lines.
    assert "75.0\u00a0[" in page and not re.search(r"\[[-+.\d]+, [-+.\d]+\]", re.sub("<[^>]*>", " ", page))


def test_a_report_of_what_was_not_drawn_says_so(study, results, tmp_path):
    more = study.model_copy(update={"figures": ["clip_ratio"]})
    with pytest.raises(UserError, match=r"clip_ratio\.svg: cannot be read .* run `snakemake figures`"):
        report.write_report(StudyResults(results, more), CAPTIONS, tmp_path / "report.html")


# ---- in a browser ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "cards"), [(400, "block true"), (1400, "table-cell false")])
def test_the_report_on_a_narrow_and_a_wide_screen(width, cards, page, chromium, tmp_path):
    """At most 8 screens high while it is folded; with all of it open nothing is wider than the screen or cut off."""
    script = Path(__file__).with_name("shown.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page, count = re.subn(r"script-src 'none'", f"script-src 'sha256-{digest}'", page, count=1)
    assert count, "the page has a policy"
    (tmp_path / "report.html").write_text(page.replace("</html>", f"<script>{script}</script></html>"))
    address = (tmp_path / "report.html").as_uri()
    done = chromium(address, f"--window-size={width},900", "--virtual-time-budget=3000", "--dump-dom")
    assert "CONSOLE" not in done.stderr
    found = dict(re.findall(r'data-(first|screens|fits|loaded|cards)="([^"]*)"', done.stdout))
    assert (found["fits"], found["loaded"], found["cards"]) == ("true", "true", cards)
    assert float(found["screens"]) <= 8
    assert width < 1400 or float(found["first"]) <= 900, "table and figure are on the first screen"


# ---- what a study says stays text -----------------------------------------------------------------------------------

HOSTILE = '<script>document.title="owned"</script><img src=x onerror=\'document.title="owned"\'>"'


def test_what_a_study_says_stays_text(study, copied, tmp_path):
    """In title, captions, names, responses and hardware; and scripts are forbidden in any case."""
    captions = tmp_path / "captions"
    captions.mkdir()
    for name in ("benchmarks", "ablation", "contrasts"):
        (captions / f"{name}.rst").write_text(f"Caption of {name} {HOSTILE}")
    methods = {**study.methods, "tepo": dataclasses.replace(study.methods["tepo"], label=HOSTILE)}
    found = StudyResults(copied, study.model_copy(update={"title": HOSTILE, "methods": methods}))
    for run in copied.glob("runs/*/*/summary.json"):
        run.write_text(run.read_text().replace("a computer", HOSTILE.replace('"', '\\"')))
    for path in copied.glob("runs/*/*/evaluation/samples.parquet"):
        pd.read_parquet(path).assign(response=HOSTILE).to_parquet(path)
    report.write_report(found, captions, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "<script" not in text and "<img src=x" not in text
    assert text.count(html.escape("<script>document.title=", quote=False)) >= 1 + 3 + 3 + 1
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy and {"script-src 'none'", "default-src 'none'"} <= set(re.split("; *", html.unescape(policy[1])))


# ---- provenance, cost and protocol ----------------------------------------------------------------------------------


def test_provenance_cost_and_protocol_of_the_records(study, results):
    """Each value once, in order of the study: six seconds of training a run, three of evaluation a model."""
    read, runs = StudyResults(results), len(run_matrix(study).runs)
    found = report.provenance(read)
    assert found["commit"] == "c0ffee" and found["hardware"] == "a computer" and found["torch"] == "2"
    assert found["vllm"] == "1" and found["transformers"] == "unknown"
    assert found["initial models"] == "tiny s0, tiny s1"
    assert report.cost(read)["training"].startswith(f"{6 * runs / 3600:.2f} core-hours in {runs} runs, ")
    assert report.cost(read)["evaluation"].startswith(f"{3 * runs / 3600:.2f} core-hours for {runs} models, ")
    assert devices("8 × NVIDIA H100 80GB HBM3") == (8, "GPU") and devices("AMD EPYC 9654 96-Core") == (1, "core")
    assert "running total: 12 problems, 2 samples at temperature 1, at most 24" in report.protocol(read)["benchmarks"]


HEADLINE = {"headline": {"methods": ["grpo", "dapo"]}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path("results/made-up")


def made_up(folder: Path, root: Path, right: dict[str, int], **changes: Any) -> StudyResults:
    """The default study with changes, where ``right`` are how many of 12 problems each arm solves."""
    study = parse_study({"base": "config.yaml", "name": "made-up", **changes}, root / "study.yaml")
    return StudyResults(make_up(study, folder, {"start": 0, **right}))


@pytest.mark.parametrize(("right", "changes", "said"), CASES["screens"].values(), ids=CASES["screens"])
def test_it_fits_on_a_screen(right, changes, said, folder, root):
    results = made_up(folder, root, right, **changes)
    lines = report.screen(results).splitlines()
    text = " ".join(" ".join(lines).split())
    assert len(lines) <= 15 and max(map(len, lines)) <= 80
    assert str(results.folder.report) in text and "make ui" in lines[-1]
    assert all(words in text for words in said), text


@pytest.mark.parametrize(("right", "begins"), CASES["warnings"])
def test_a_study_in_which_nothing_was_right_or_learned_says_so_first(right, begins, folder, root):
    results = made_up(folder, root, right, experiments=HEADLINE, evaluation={"greedy": False})
    assert [report.screen(results).startswith(text) for text in begins] == [True] * len(begins)
    found = report.warnings(results)
    assert [text[: len(begin)] for text, begin in zip(found, begins, strict=True)] == begins


# ---- what is missing or damaged -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "name"), [("summary.json", "grpo/seed0"), ("evaluation/records.json", "the evaluation of grpo/seed0")]
)
def test_any_result_that_is_gone_is_noticed(pattern, name, copied):
    report.check_complete(StudyResults(copied))
    for path in copied.glob(f"runs/*/*/{pattern}"):
        path.unlink()
    with pytest.raises(UserError, match=rf"not finished: \d of its results are missing, such as {name}"):
        report.check_complete(StudyResults(copied))


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
        (part,) = report.samples(StudyResults(copied))
        assert f" of {model} to each benchmark" in part.note
        assert {row[part.header.index("response")][: len(model)] for row in part.rows} == {model}
        for path in copied.glob(f"{begins}/**/records.json"):
            path.unlink()
    assert not report.samples(StudyResults(copied))
