"""`policygrain show`: the numbers of the tables, error messages, and the page of samples in a real browser."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from policygrain.analysis.models import difference, summary
from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.evaluate import reading
from policygrain.evaluate.run import evaluate
from policygrain.tasks.prompts import PromptRenderer
from policygrain.views.samples import write_page
from policygrain.views.show import WIDTH

from ..support.evaluations import RIGHT, UNREAD, WRONG, make_run
from ..support.small import make_start, small_study

# Three problems with two responses each: right on 2, 1 and 0 of them. 3 of 6 right, pass@2 = 2 / 3.
COUNT = [[RIGHT, RIGHT], [RIGHT, WRONG], [UNREAD, WRONG]]
# One problem, one kind of outcome a response.
REST = [["timeout", "error"]]
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> <b>&amp;</b>"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs" / "grpo" / "seed0", {"count": COUNT, "rest": REST})


@pytest.fixture
def better(tmp_path: Path) -> Path:
    """Right on one response more: 4 of 6."""
    return make_run(
        tmp_path / "runs" / "tepo" / "seed0", {"count": [[RIGHT, RIGHT], [RIGHT, RIGHT], [WRONG, WRONG]], "rest": REST}
    )


# ---- the terminal ---------------------------------------------------------------------------------------------------


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["show", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["show", *map(str, arguments)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("policygrain: ") and "Traceback" not in said
    return said


def test_the_tables_of_one_model(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, run)
    assert text == shown(capsys, run / "evaluation") == shown(capsys, run / "evaluation" / "records.json")
    # Resamples of the scores 1, 0.5, 0: 1/27 of them have the mean 0 and as many the mean 1, more than 2.5% each.
    assert re.search(r"^count +2 +3 +50\.0 \[0\.0, 100\.0\] +50\.0 +66\.7 +25\.0$", text, flags=re.M)
    assert re.search(r"^rest +2 +1 +0\.0 \[0\.0, 0\.0\] +0\.0 +0\.0 +25\.0$", text, flags=re.M)
    assert re.search(
        r"^benchmark +correct +incorrect +unparsable +timeout +error +truncated +tokens$", text, flags=re.M
    )
    assert re.search(r"^count +3 +2 +1 +0 +0 +50\.0 +10\.0$", text, flags=re.M)
    assert re.search(r"^rest +0 +0 +0 +1 +1 +50\.0 +10\.0$", text, flags=re.M)
    assert "Average of the benchmarks: 25.0 [" in text
    for fact in ("numeric-1", "temperature 1,", "digest-count", "seed0", "a machine", "python 3.11.7, torch 2.13.0"):
        assert fact in text
    assert "rest" not in shown(capsys, run, "--benchmark", "count")


def test_several_models_stand_side_by_side(run: Path, better: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, run, better)
    # Scores differ on one problem of three, by a half; 8/27 of the resamples leave it out, 1/27 hold nothing else.
    assert re.search(r"^  grpo/seed0 +50\.0 \[0\.0, 100\.0\]$", text, flags=re.M)
    assert re.search(r"^  tepo/seed0 +66\.7 \[0\.0, 100\.0\] +\+16\.7 \[\+0\.0, \+50\.0\]$", text, flags=re.M)
    turned = shown(capsys, run, better, "--against", "tepo/seed0")
    assert re.search(r"^  grpo/seed0 +50\.0 \[0\.0, 100\.0\] +-16\.7 \[-50\.0, \+0\.0\]$", turned, flags=re.M)
    assert "no 'dapo' here. There are: grpo/seed0, tepo/seed0" in refused(capsys, run, better, "--against", "dapo")


def test_a_difference_that_excludes_zero_is_starred(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = make_run(tmp_path / "a", {"count": [[WRONG, WRONG]] * 8 + [[RIGHT, RIGHT]] * 2})
    b = make_run(tmp_path / "b", {"count": [[RIGHT, RIGHT]] * 10})
    assert re.search(
        r"^  b +100\.0 \[100\.0, 100\.0\] +\+80\.0 \[\+50\.0, \+100\.0\] \*$", shown(capsys, a, b), flags=re.M
    )


def test_a_study_has_a_line_per_arm(
    tmp_path: Path, run: Path, better: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(
        tmp_path / "runs" / "grpo" / "seed1", {"count": [[RIGHT, RIGHT], [RIGHT, RIGHT], [RIGHT, RIGHT]], "rest": REST}
    )
    (entry, _) = entries = reading.find([tmp_path])
    assert [(e.name, [m.seed for m in e.models]) for e in entries] == [("grpo", ["0", "1"]), ("tepo", ["0"])]
    assert entry.scores("count").tolist() == [[1.0, 0.5, 0.0], [1.0, 1.0, 1.0]]
    both = summary(entry, "count")
    assert both["accuracy"]["mean"] == 0.75 and both["pass_at"][2] == pytest.approx((2 / 3 + 1) / 2)
    assert both["outcomes"] == {RIGHT: 9, WRONG: 2, UNREAD: 1, "timeout": 0, "error": 0} and both["tokens"] == 10
    # Seed 0 is what they share.
    paired = difference(entries[1], entry, "count")
    assert paired is not None and paired.mean == pytest.approx(1 / 6)
    assert "seeds" in shown(capsys, tmp_path)
    # The study's own lines bring its order, and models whose samples are elsewhere.
    lines = []
    for model, folder in {"start/seed0": better, "tepo/seed0": better, "grpo/seed0": run}.items():
        file = json.loads((folder / "evaluation" / "records.json").read_text())
        names = {"model": model, "key": file["key"] + model[:2] * (model[0] == "s"), "protocol_key": "k"}
        lines += [json.dumps(names | record) for record in file["records"]]
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "00.jsonl").write_text("\n".join(lines) + "\n")
    entries = reading.find([tmp_path])
    assert [e.name for e in entries] == ["start", "tepo", "grpo"] and len(entries[2].models) == 2
    assert not reading.differences(entries), "the key of a protocol stands for what a neighbour spells out"
    assert shown(capsys, tmp_path) == shown(capsys, tmp_path / "evaluation")


def test_nothing_is_wider_than_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"a_benchmark_with_quite_a_long_name_{i}" for i in range(7)]
    runs = [
        make_run(tmp_path / ("an_arm,with=settings," * 4 + str(i)) / "seed0", dict.fromkeys(names, COUNT))
        for i in (0, 1)
    ]
    for folder in runs:
        path = folder / "evaluation" / "records.json"
        file = json.loads(path.read_text())
        for record in file["records"]:
            record["pass_at"] = {str(2**k): 0.5 for k in range(10)}
        path.write_text(json.dumps(file))
    other = make_run(tmp_path / "a_folder_with_a_long_name" / "seed0", {names[0]: COUNT}, protocol={"seed": 8})
    text = shown(capsys, runs[0]) + shown(capsys, *runs) + shown(capsys, *runs, other, "--anyway")
    assert "pass@512" in text and max(map(len, text.splitlines())) <= WIDTH


def test_protocols_are_not_mixed_by_accident(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_run(tmp_path / "other", {"count": COUNT, "rest": REST}, protocol={"seed": 8, "engine": "transformers"})
    for extra in ([], ["--page", tmp_path / "x.html"]):
        said = refused(capsys, run, other, *extra)
        assert "different protocols" in said and "--anyway" in said
        assert (
            "seed: 7 in grpo/seed0; 8 in other" in said and "engine: vllm in grpo/seed0; transformers in other" in said
        )
        assert "model" not in said, "another model is no other protocol"
    text = shown(capsys, run, other, "--anyway")
    assert "THE PROTOCOLS DIFFER" in text and "seed: 7 in grpo/seed0; 8 in other" in text
    # Other problems of the same name are not paired; a benchmark that is left out is no difference.
    other = make_run(tmp_path / "third", {"count": COUNT, "rest": REST})
    path = other / "evaluation" / "records.json"
    path.write_text(path.read_text().replace("digest-count", "digest-of-others"))
    assert difference(*reversed(reading.find([run, other])), "count") is None
    assert "benchmarks.count.problems: digest-count in" in refused(capsys, run, other)
    assert "rest: 1 problems" in shown(capsys, run, other, "--benchmark", "rest")


def test_json_is_the_same_for_machines(run: Path, better: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(shown(capsys, run, better, "--json"))
    assert data["against"] == "grpo/seed0" and data["protocol_differences"] == []
    first, second = data["models"]
    assert first["benchmarks"]["count"]["accuracy"]["mean"] == 0.5 and "difference" not in first["benchmarks"]["count"]
    assert second["benchmarks"]["count"]["difference"]["mean"] == pytest.approx(1 / 6)
    assert second["protocols"][0]["grader"] == "numeric-1" and second["facts"][0]["hardware"] == "a machine"


def test_names_are_as_long_as_it_takes(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / study / "runs" / "grpo" / "seed0", {"count": COUNT}) for study in ("laptop", "smoke")]
    assert [e.name for e in reading.find(runs)] == ["laptop/grpo/seed0", "smoke/grpo/seed0"]
    with pytest.raises(UserError, match="is named twice"):
        reading.find([runs[0], runs[0] / "evaluation"])


def test_what_is_missing_or_broken_is_one_message(
    tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nowhere: there is nothing here" in refused(capsys, tmp_path / "nowhere")
    (tmp_path / "empty" / "runs").mkdir(parents=True)
    assert "no evaluation here" in refused(capsys, tmp_path / "empty")
    assert "count.jsonl: not a records.json" in refused(capsys, run / "evaluation" / "count.jsonl")
    assert "no record of 'sums' here. There are: count, rest" in refused(capsys, run, "--benchmark", "sums")
    samples, records = run / "evaluation" / "count.jsonl", run / "evaluation" / "records.json"
    page = ["--page", tmp_path / "page.html"]
    whole = samples.read_text()
    for broken, said in {
        whole[:-20]: r"count\.jsonl, line 6: .*Evaluate the model again",
        whole.replace('"gold": "10", ', ""): r"count\.jsonl, line 3: gold: Field required",
        whole.replace("unparsable", "correct"): r"count\.jsonl: these are not the samples that records\.json counts",
    }.items():
        samples.write_text(broken)
        assert re.search(said, refused(capsys, run, *page))
    samples.unlink()
    assert "count.jsonl: the samples are missing" in refused(capsys, run, *page)
    text = records.read_text()
    for broken, said in {
        text[:100]: "records.json: Invalid JSON",
        text.replace('"per_problem": [1.0, ', '"per_problem": ['): "2 scores for 3 problems",
        text.replace('"protocol"', '"protokoll"'): "records.json: protocol: Field required",
        json.dumps(json.loads(text) | {"records": []}): "records.json: holds no record",
        "\udcff": "records.json: Invalid JSON",
    }.items():
        records.write_text(broken, errors="surrogateescape")
        assert said in refused(capsys, run)


def test_a_page_has_a_largest_size(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policygrain.views.samples.MOST", 7)
    with pytest.raises(UserError, match="8 samples, and a page holds 7; choose with --benchmark"):
        write_page(reading.find([run]), tmp_path / "page.html")
    others = [make_run(tmp_path / name, {"count": COUNT}) for name in "ab"]
    with pytest.raises(UserError, match="one run or of two"):
        write_page(reading.find([run, *others]), tmp_path / "page.html")


def test_what_evaluate_writes_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, start = make_start(tmp_path)
    evaluate(small_study(), {"start/seed0": start}, data, tmp_path / "records.jsonl")
    record = json.loads((tmp_path / "records.jsonl").read_text())
    assert f"{100 * record['accuracy']:.1f} [" in shown(capsys, tmp_path / "start" / "seed0")
    shown(capsys, tmp_path / "start" / "seed0", "--page", tmp_path / "page.html")
    assert "count-test-00014" in (tmp_path / "page.html").read_text()


def test_the_prompt_is_shown_where_its_digest_says_so(run: Path, tmp_path: Path) -> None:
    study = small_study(prompt={"template": "Question: {problem}\nAnswer: "})
    (tmp_path / "study.yaml").write_text(json.dumps(study.model_dump(mode="json")))

    def prompts() -> Any:
        text = write_page(reading.find([run]), tmp_path / "page.html").read_text()
        data = re.search(r'id="data">(.*?)</script>', text)
        assert data
        return [r["prompt"] for r in json.loads(data[1])["runs"]]

    assert prompts() == [None], "the evaluation's digest is another prompt's"
    records = run / "evaluation" / "records.json"
    file = json.loads(records.read_text())
    file["protocol"]["prompt"] = PromptRenderer(None, study.prompt).digest  # type: ignore[arg-type]
    records.write_text(json.dumps(file))
    assert prompts() == [["Question: ", "\nAnswer: "]]


# ---- the page, in a browser -----------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What a browser made of a page."""

    cards: list[str]  # text of each sample
    status: str
    counts: dict[str, int]  # filter → samples
    chosen: list[str]  # labels of the buttons that are pressed
    current: list[int]  # places of the outlined samples on the page
    markup: str
    console: str


def plain(markup: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", re.sub(r"</(b|span|header|pre|summary)>", " ", markup)))


@pytest.fixture(scope="session")
def browse(chromium: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Seen]:
    """Open a page under an address, optionally with a script after its own, and say what is to be seen."""
    folder = tmp_path_factory.mktemp("pages")

    def open_page(page: Path, address: str = "", script: str = "") -> Seen:
        copy = folder / "page.html"
        allowed = f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        text = page.read_text().replace("script-src ", f"script-src {allowed} ")
        copy.write_text(text.replace("</html>", f"<script>{script}</script></html>"))
        done = chromium(f"{copy.as_uri()}#{address}", "--virtual-time-budget=3000", "--dump-dom")
        main_part = re.search(r'<main id="list">(.*?)</main>', done.stdout, flags=re.S)
        assert main_part, done.stdout[-2000:] + done.stderr
        cards = re.findall(r"<article.*?</article>", main_part[1], flags=re.S)
        filters = re.findall(r'<button aria-pressed="(\w+)".*?data-show="(\w+)">.*?<small>([\d,]+)<', done.stdout)
        tabs = re.findall(r'<button role="tab" aria-selected="(\w+)" data-benchmark="(\w+)"', done.stdout)
        status = re.search(r'id="status"[^>]*>(.*?)<', done.stdout)
        return Seen(
            cards=[plain(card) for card in cards],
            status=status[1] if status else "",
            counts={name: int(count.replace(",", "")) for _, name, count in filters},
            chosen=[name for on, name, *_ in [*tabs, *filters] if on == "true"],
            current=[i for i, card in enumerate(cards) if 'class="current"' in card],
            markup=done.stdout,
            console="\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line),
        )

    return open_page


@pytest.fixture
def page(run: Path, tmp_path: Path) -> Path:
    return write_page(reading.find([run]), tmp_path / "page.html")


def test_tabs_and_filters(browse: Callable[..., Seen], page: Path) -> None:
    seen = browse(page)
    assert seen.chosen == ["count", "all"] and seen.status == "1–6 of 6" and not seen.console
    # Outcomes: correct ×3, incorrect ×2, unparsable ×1; the first of each pair is truncated; only problem 1 is mixed.
    assert seen.counts == {
        **{"all": 6, "right": 3, "wrong": 3, "unparsable": 1, "timeout": 0, "error": 0},
        **{"truncated": 3, "disagreement": 2},
    }
    assert "count-1" in seen.cards[3] and "sample 1" in seen.cards[3] and "gold 10" in seen.cards[3]
    assert "count what is 1" in seen.cards[3] and "incorrect 10 tokens" in seen.cards[3]
    assert "truncated" in seen.cards[2] and "truncated" not in seen.cards[3]

    wrong = browse(page, "benchmark=count&show=wrong")
    assert [re.search(r"take \d, \w+", card)[0] for card in wrong.cards] == [  # type: ignore[index]
        *("take 1, incorrect", "take 0, unparsable", "take 1, incorrect")
    ]
    assert wrong.chosen == ["count", "wrong"] and wrong.status == "1–3 of 3"
    other = browse(page, "benchmark=rest&show=timeout")
    assert other.chosen == ["rest", "timeout"] and len(other.cards) == 1 and "rest 0 take 0, timeout" in other.cards[0]
    assert all("count-1" in card for card in browse(page, "show=disagreement").cards)
    none = browse(page, "benchmark=count&show=error")
    assert none.cards == [] and none.status == "nothing matches"
    # An address of another page, or a broken one, shows the beginning.
    assert browse(page, "benchmark=gone&show=odd&at=x%").chosen == ["count", "all"]


def test_search_and_its_counts(browse: Callable[..., Seen], page: Path) -> None:
    seen = browse(page, "benchmark=count&show=wrong&q=TAKE%201")
    assert len(seen.cards) == 2 and seen.counts["all"] == 3 and seen.counts["right"] == 1
    assert seen.markup.count("<mark>take 1</mark>") == 2
    typed = browse(page, "", "at('q').value = 'unparsable'; at('q').dispatchEvent(new Event('input'));")
    assert len(typed.cards) == 1 and typed.status == "1–1 of 1"


KEYS = "for (const key of {keys!r}) dispatchEvent(new KeyboardEvent('keydown', {{key}}));"
ADDRESS = "document.getElementById('status').textContent = location.hash;"


def test_keys_and_the_address_that_keeps_them(browse: Callable[..., Seen], tmp_path: Path) -> None:
    folder = make_run(tmp_path / "many", {"count": [[RIGHT, WRONG]] * 60, "rest": REST})
    page = write_page(reading.find([folder]), tmp_path / "page.html")
    assert browse(page).status == "1–50 of 120"
    assert browse(page, "", KEYS.format(keys="jjk")).current == [1]
    next_page = browse(page, "at=50", KEYS.format(keys="j"))
    assert next_page.status == "51–100 of 120" and next_page.current == [0] and not next_page.console
    assert browse(page, "", KEYS.format(keys="jnn") + ADDRESS).status == "#benchmark=count&amp;at=101"
    assert browse(page, "", "at('on').click(); at('on2').click();").status == "101–120 of 120"
    assert browse(page, "show=wrong&at=60").current == [9]
    assert browse(page, "at=9999").status == "101–120 of 120"
    assert browse(page, "", KEYS.format(keys="2") + ADDRESS).status == "#benchmark=rest"
    clicked = browse(page, "", "document.querySelector('[data-show=wrong]').click();" + ADDRESS)
    assert clicked.status == "#benchmark=count&amp;show=wrong" and clicked.counts["wrong"] == 60


def test_two_runs_side_by_side(browse: Callable[..., Seen], run: Path, better: Path, tmp_path: Path) -> None:
    page = write_page(reading.find([run, better]), tmp_path / "page.html")
    seen = browse(page, "benchmark=count&show=disagreement")
    assert len(seen.cards) == 1 and not seen.console
    assert "grpo/seed0 incorrect" in seen.cards[0] and "tepo/seed0 correct" in seen.cards[0]
    assert seen.counts["gained"] == 1 and seen.counts["lost"] == 0 and seen.counts["all"] == 6
    assert seen.counts["wrong"] == 3 and seen.counts["unparsable"] == 1


def test_hostile_text_stays_text(browse: Callable[..., Seen], tmp_path: Path) -> None:
    odd = [
        HOSTILE,
        "<!--<script>",
        "a \x00 zero, \u2028 {{title}} {{data}}",
        "",
        "İ" * 3 + "<i>",
        "x" * 9000,
    ]
    folder = make_run(
        tmp_path / "<b>run",
        {"count": [[RIGHT], [WRONG], [RIGHT], [UNREAD], [WRONG], [WRONG]]},
        lambda b, p, i, o: odd[p],
    )
    page = write_page(reading.find([folder]), tmp_path / "page.html")
    seen = browse(page)
    assert not seen.console and len(seen.cards) == 6
    assert HOSTILE in seen.cards[0] and "<!--<script>" in seen.cards[1] and "{{title}} {{data}}" in seen.cards[2]
    assert "(empty)" in seen.cards[3] and "İİİ<i>" in seen.cards[4]
    assert "<title>Samples of &lt;b&gt;run</title>" in seen.markup and "<img" not in plain_markup(seen)
    assert seen.cards[5].count("x") < 2000 and "7,400 characters more" in seen.cards[5]
    assert browse(page, "at=6", KEYS.format(keys="o")).cards[5].count("x") > 9000 - 1
    searched = browse(page, "q=" + "%3C%2Fscript%3E")
    assert len(searched.cards) == 1 and "<mark>&lt;/script&gt;</mark>" in searched.markup


def plain_markup(seen: Seen) -> str:
    """The markup without the data, in which everything is a string."""
    return re.sub(r'<script type="application/json".*?</script>', "", seen.markup, flags=re.S)


def test_a_fault_of_the_page_would_be_seen(browse: Callable[..., Seen], page: Path) -> None:
    assert "on purpose" in browse(page, "", "throw new Error('on purpose');").console


def test_no_script_runs_but_the_page_s_own(chromium: Callable[..., Any], page: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.html"
    foreign.write_text(page.read_text().replace("</html>", "<script>document.title = 'owned'</script></html>"))
    markup = chromium(foreign.as_uri(), "--virtual-time-budget=3000", "--dump-dom").stdout
    assert "<title>Samples of grpo/seed0</title>" in markup and "count what is 1" in plain(markup)


def test_the_page_loads_nothing(page: Path) -> None:
    text = page.read_text()
    assert "default-src 'none'" in text and not re.search(
        r"(src|href)\s*=|url\(|https?:|@import", text.split('id="data"')[0]
    )
