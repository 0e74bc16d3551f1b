"""The page of a step's tokens: what each token shows, and that texts stay texts."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policygrain.errors import UserError
from policygrain.paths import RunFolder
from policygrain.records import TokenSample, TokenView, write_record
from policygrain.report.samples import token_page, write_tokens

from ..support.pages import with_script

HOSTILE = "</i></p><script>document.title='owned'</script>"


def made_up(tokens: list[str], **changes: Any) -> TokenView:
    """A step with one sample; nothing is clipped, and the policy has not changed."""
    n = len(tokens)
    sample: dict[str, Any] = {"prompt": " 1+1=", "correct": True, "reward": 1.0, "advantage": 0.5, "tokens": tokens}
    sample |= {"ratio": [1.0] * n, "entropy_change": [0.0] * n, "log_prob": [-1.0] * n, "log_prob_old": [-1.0] * n}
    sample |= {"clipped_low": [False] * n, "clipped_high": [False] * n, "entropy_drop": [False] * n}
    sample |= {"in_loss": [True] * n, **changes}
    return TokenView(step=2, method="tepo", samples=[TokenSample(**sample)])


def tokens_of(text: str) -> list[dict[str, str]]:
    """Class, style, title and text of every token in the articles."""
    pattern = r'<i class="(.*?)" style="(.*?)" title="(.*?)">(.*?)</i>'
    tokens = re.findall(pattern, text.partition("<article")[2], flags=re.S)
    return [dict(zip(("class", "style", "title", "text"), map(html.unescape, token), strict=True)) for token in tokens]


def test_tokens_and_their_numbers() -> None:
    data = made_up(
        ["a", " b", "", "c\n"],
        ratio=[2.0, 0.5, 1.0, 1.0],
        clipped_high=[True, False, False, False],
        entropy_drop=[True, False, False, False],
        in_loss=[True, True, False, True],
        entropy_change=[-0.25, 0.0, 0.0, 0.0],
    )
    tokens = tokens_of(token_page(data, "tepo, seed0, step 2"))
    assert [t["text"] for t in tokens] == ["a", " b", "∅", "c↵<br>"]
    assert [t["class"] for t in tokens] == ["clip drop", "", "out", ""]
    # Four tokens: their 95% quantile is the largest, |log2 2| = 1 for the ratio, 0.25 nats for the entropy.
    shades = [dict(re.findall(r"--(\w+):([-\d.]+);", t["style"])) for t in tokens]
    assert [s["ratio"] for s in shades] == ["1.000", "-1.000", "0.000", "0.000"]
    assert [s["entropy"] for s in shades] == ["-1.000", "0.000", "0.000", "0.000"]
    assert [s["advantage"] for s in shades] == ["1.000", "1.000", "0.000", "1.000"]
    assert tokens[0]["title"].split("\n") == [
        *("ratio: 2.0000", "log-probability: -1.000 → -1.000", "entropy: -0.250 nats"),
        *("clipped: high", "in TEPO's mask: yes", "in the loss: yes"),
    ]
    assert "in the loss: no" in tokens[2]["title"]


def test_a_sample_says_prompt_outcome_reward_and_advantage() -> None:
    text = token_page(made_up(["x"], correct=False, reward=0.25, advantage=-1.5), "t")
    assert '<article class="wrong">' in text
    header = re.search("<header>(.*)</header>", text)
    assert header and re.sub("<.*?>", "", header[1]) == "1+1=wrong, reward 0.25, advantage -1.50"


def test_no_white_space_is_added_between_tokens() -> None:
    text = token_page(made_up(["a", "b"]), "t")
    paragraph = re.search(r"<p>(<i.*</i>)</p>", text, flags=re.S)
    assert paragraph is not None and re.sub(r"<[^>]*>", "", paragraph[1]) == "ab"


def test_a_sample_without_tokens() -> None:
    assert tokens_of(token_page(made_up([]), "t")) == []


def test_hostile_text_stays_text(chromium: Callable[..., Any], tmp_path: Path) -> None:
    data = made_up([HOSTILE, "b"], prompt=HOSTILE)
    assert tokens_of(token_page(data, "t"))[0]["text"] == HOSTILE
    out = tmp_path / "page.html"
    # Even a script that is in the page does not run.
    out.write_text(token_page(data, "mine").replace("</html>", "<script>document.title='owned'</script></html>"))
    done = chromium(out.as_uri(), "--virtual-time-budget=1000", "--dump-dom")
    assert "<title>mine</title>" in done.stdout and done.stdout.count("<article") == 1


def test_the_page_loads_nothing() -> None:
    text = token_page(made_up(["x"]), "t")
    assert "default-src 'none'" in text and not re.search(r"(src|href)\s*=|url\(|https?:|@import", text)
    assert "{{" not in text and "{%" not in text


def test_full_colour_is_the_strongest_twentieth() -> None:
    ratios = [1.0] * 36 + [2.0] * 3 + [4.0]
    found = tokens_of(token_page(made_up(["a"] * 40, ratio=ratios), "t"))
    # Sorted |log2|: 36 × 0, 3 × 1, 1 × 2; place 0.95 · 40 = 38, counted from 0, is a 1.
    assert [re.search(r"--ratio:([-\d.]+)", t["style"])[1] for t in found[35:]] == [  # type: ignore[index]
        *("0.000", "1.000", "1.000", "1.000", "1.000")
    ]


def test_the_page_of_a_step_or_of_the_last(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "tepo" / "seed0")
    with pytest.raises(UserError, match="no token views here"):
        write_tokens(run, None, None)
    for step, word in ((2, "two"), (10, "ten")):
        write_record(run.tokens(step), made_up([word]).model_copy(update={"step": step}))
    assert write_tokens(run, None, None) == run.tokens(10).with_suffix(".html")
    assert "<title>tepo, seed0, step 10</title>" in run.tokens(10).with_suffix(".html").read_text()
    out = write_tokens(run, 2, tmp_path / "out" / "page.html")
    assert "two" in out.read_text() and list(run.token_steps()) == [2, 10]
    with pytest.raises(UserError, match=r"no token views of step 3\. There are: 2, 10\."):
        write_tokens(run, 3, None)
    run.tokens(2).write_text('{"step": 2}')
    with pytest.raises(UserError, match=r"step00002\.json: written by an older version"):
        write_tokens(run, 2, None)


def test_the_page_has_a_dark_mode(chromium: Callable[..., Any], tmp_path: Path) -> None:
    """All colours are of the two palettes at its beginning, and the browser chooses one of them."""
    text = token_page(made_up(["1", "2"]), "t")
    style = text.partition("<style>")[2].partition("</style>")[0]
    head, _, rules = style.partition("  body {")
    assert "prefers-color-scheme: dark" in head and not re.search(r"#[0-9a-f]{3,6}\b", rules)
    script = "document.body.dataset.back = getComputedStyle(document.body).backgroundColor"
    path = tmp_path / "page.html"
    path.write_text(with_script(text, script))
    for option, back in (
        ("--blink-settings=preferredColorScheme=0", "rgb(22, 24, 27)"),
        ("--disable-sync", "rgb(255, 255, 255)"),
    ):
        done = chromium(path.as_uri(), option, "--dump-dom")
        assert f'data-back="{back}"' in done.stdout
