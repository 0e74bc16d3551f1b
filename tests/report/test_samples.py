"""The page of samples: its data, its largest size, and how it works in a real browser."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from policygrain.analysis.evaluated_models import find
from policygrain.errors import UserError
from policygrain.report.samples import write_page

from ..support.evaluations import COUNT, REST, RIGHT, UNREAD, WRONG, make_run
from ..support.pages import with_script

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> <b>&amp;</b>"


def test_a_page_has_a_largest_size(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policygrain.report.samples.MOST", 7)
    with pytest.raises(UserError, match="8 samples, and a page holds 7; choose with --benchmark"):
        write_page(find([run]), tmp_path / "page.html")
    others = [make_run(tmp_path / name, {"count": COUNT}) for name in "ab"]
    with pytest.raises(UserError, match="one run or of two"):
        write_page(find([run, *others]), tmp_path / "page.html")


def test_the_prompt_of_the_record_is_shown(run: Path, tmp_path: Path) -> None:
    def prompts(folder: Path) -> Any:
        text = write_page(find([folder]), tmp_path / "page.html").read_text()
        data = re.search(r'id="data">(.*?)</script>', text)
        assert data
        return [r["prompt"] for r in json.loads(data[1])["runs"]]

    assert prompts(run) == [None], "a problem that does not stand between two texts"
    plain = make_run(tmp_path / "plain", {"count": COUNT}, prompt=("Question: ", "\nAnswer: "))
    assert prompts(plain) == [["Question: ", "\nAnswer: "]]


@dataclass
class Seen:
    """What a browser shows of a page."""

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
        copy.write_text(with_script(page.read_text(), script))
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
    return write_page(find([run]), tmp_path / "page.html")


@pytest.mark.slow
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


@pytest.mark.slow
def test_keys_and_the_address_that_keeps_them(browse: Callable[..., Seen], tmp_path: Path) -> None:
    folder = make_run(tmp_path / "many", {"count": [[RIGHT, WRONG]] * 60, "rest": REST})
    page = write_page(find([folder]), tmp_path / "page.html")
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
    page = write_page(find([run, better]), tmp_path / "page.html")
    seen = browse(page, "benchmark=count&show=disagreement")
    assert len(seen.cards) == 1 and not seen.console
    assert "grpo/seed0 incorrect" in seen.cards[0] and "tepo/seed0 correct" in seen.cards[0]
    assert seen.counts["gained"] == 1 and seen.counts["lost"] == 0 and seen.counts["all"] == 6
    assert seen.counts["wrong"] == 3 and seen.counts["unparsable"] == 1


def test_hostile_text_stays_text(browse: Callable[..., Seen], tmp_path: Path) -> None:
    odd = [HOSTILE, "<!--<script>", "a \x00 zero, \u2028 {{title}} {{data}}", "", "İ" * 3 + "<i>", "x" * 9000]
    folder = make_run(
        tmp_path / "<b>run",
        {"count": [[RIGHT], [WRONG], [RIGHT], [UNREAD], [WRONG], [WRONG]]},
        lambda b, p, i, o: odd[p],
    )
    page = write_page(find([folder]), tmp_path / "page.html")
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


def test_only_the_page_s_own_script_runs(chromium: Callable[..., Any], page: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.html"
    foreign.write_text(page.read_text().replace("</html>", "<script>document.title = 'owned'</script></html>"))
    markup = chromium(foreign.as_uri(), "--virtual-time-budget=3000", "--dump-dom").stdout
    assert "<title>Samples of grpo/seed0</title>" in markup and "count what is 1" in plain(markup)


def test_the_page_loads_nothing(page: Path) -> None:
    text = page.read_text()
    assert "default-src 'none'" in text and not re.search(
        r"(src|href)\s*=|url\(|https?:|@import", text.split('id="data"')[0]
    )
