"""Fetching from a mirror on this machine, and checking what is there."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas
import pytest

from policygrain.cli import main
from policygrain.data.fetch import convert, fetch
from policygrain.data.problem import read_problems
from policygrain.data.sets import SETS, ProblemSet, check_file, content_digest, load_set
from policygrain.errors import UserError

from ..support.files import write_lines
from ..support.problem_sets import CODE, ROWS, SOURCE, made_up, raw
from .test_sets import PUBLISHED


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Put the file of a set into the mirror."""
    monkeypatch.setenv("POLICYGRAIN_MIRROR", f"file://{tmp_path}/mirror/")

    def write(of: ProblemSet, content: bytes) -> Path:
        path = tmp_path / "mirror" / of.github
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return write


def test_a_set_is_fetched_once_and_no_file_is_overwritten(publish, tmp_path):
    published, folder = publish(made_up(), SOURCE), tmp_path / "new" / "folder"
    assert fetch(made_up(), folder).endswith("made_up.jsonl: 300 problems")
    problems = read_problems(folder / "made_up.jsonl")
    assert [(p.problem, p.answer) for p in problems] == [(row["question"], row["answer"]) for row in ROWS]
    assert problems[7].id == "made-up-7" and [path.name for path in folder.iterdir()] == ["made_up.jsonl"]
    published.unlink()
    assert fetch(made_up(), folder).endswith("there already")
    (folder / "made_up.jsonl").write_text('{"id": 1, "problem": "1+1", "answer": "2"}\n')
    with pytest.raises(UserError, match=r"1 problems instead of 300.*not overwritten"):
        fetch(made_up(), folder)


CHANGED = SOURCE.replace(b"question", b"quest\xc2\xadion")
EMPTY = SOURCE.replace(b'"6"', b'" "')
# A set, the bytes that its source has, and what is said.
REFUSED: list[tuple[ProblemSet, bytes, str]] = [
    (made_up(), SOURCE[:1000], "wrong checksum"),
    (made_up(count=301), SOURCE, "made_up: .* makes 300 problems instead of 301"),
    (made_up(digest="0" * 64), SOURCE, r"wrong content: digest .* instead of 000000000000…"),
    (made_up(CHANGED), CHANGED, r"KeyError\('question'\)"),
    (made_up(EMPTY), EMPTY, "made-up-3 is empty"),
]


@pytest.mark.parametrize(("of", "content", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_what_is_not_the_pinned_set_is_refused_and_leaves_nothing(of, content, message, publish, tmp_path):
    publish(of, content)
    with pytest.raises(UserError, match=message):
        fetch(of, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_missing_file_and_an_unreachable_server(publish, monkeypatch):
    with pytest.raises(UserError, match=r"made_up: file:.*cannot be fetched: .*No such file"):
        fetch(made_up(), Path("nowhere"))
    monkeypatch.setenv("POLICYGRAIN_MIRROR", "http://127.0.0.1:1")
    with pytest.raises(UserError, match=r"cannot be fetched: .*refused.*HTTPS_PROXY.*POLICYGRAIN_MIRROR"):
        fetch(made_up(), Path("nowhere"))


def test_rows_of_other_formats(tmp_path, publish):
    pandas.DataFrame(ROWS).to_parquet(file := tmp_path / "file")
    for form, content in {"parquet": file.read_bytes(), "json": json.dumps(ROWS).encode()}.items():
        of = made_up(content, github=f"some/where/abc/file.{form}")
        publish(of, content)
        assert fetch(of, tmp_path / form).endswith("300 problems")


@pytest.mark.parametrize("name", ["gsm8k_train", "aime25"])
def test_fetching_a_published_file_rebuilt_byte_for_byte(name, publish, tmp_path, benchmarks_folder):
    """Recorded files that contain all columns of their source: the source is rebuilt and has the pinned blob id."""
    rows = PUBLISHED[name](raw(benchmarks_folder, name))
    publish(SETS[name], "".join(json.dumps(row) + "\n" for row in rows).encode())
    assert fetch(SETS[name], tmp_path).endswith(f"{len(rows)} problems")


@pytest.mark.parametrize("name", CODE)
def test_fetching_programs(name, publish, tmp_path, benchmarks_folder):
    published = benchmarks_folder / "code" / Path(SETS[name].github).name
    if not published.exists():
        pytest.skip(f"{published} is not there")
    publish(SETS[name], published.read_bytes())
    fetch(SETS[name], tmp_path)
    problems = load_set(SETS[name], tmp_path, name)
    without = [replace(p, options=replace(p.options, seconds=None)) for p in problems]
    assert without == convert(SETS[name], published.read_bytes())
    slow = {p.id: p.options.seconds for p in problems if p.options.seconds}
    assert slow == ({"mbpp_plus-599": 60.0} if name == "mbpp_plus" else {})


def test_check_names_each_fault(tmp_path):
    one, two = {"id": 1, "problem": "1+1", "answer": "2"}, {"id": 2, "problem": "2+2", "answer": "4"}
    of = made_up(count=2, digest=content_digest([one, two]), compared=lambda row: {"list_answer": row["several"]})

    def faults(*rows: dict[str, object]) -> str:
        write_lines(tmp_path / "made_up.jsonl", [{"several": False} | row for row in rows])
        return "; ".join(check_file(of, tmp_path))

    assert faults(one, two) == ""
    # White space and ids are not part of the digest; order, problems and answers are.
    assert faults({**one, "id": "x"}, {**two, "problem": " 2+2\n"}) == ""
    assert "wrong content" in faults(two, one)
    assert "wrong content" in faults(one, {**two, "answer": "5"})
    assert "1 problems instead of 2" in faults(one)
    assert "1 ids occur more than once" in faults(one, {**two, "id": 1})
    write_lines(tmp_path / "made_up.jsonl", [one, two])
    assert check_file(of, tmp_path) == [
        f"{tmp_path}/made_up.jsonl: a column that says how answers are compared is missing or wrong: 'several'"
    ]


def test_list_fetch_and_check_on_the_command_line(tmp_path, capsys, monkeypatch):
    def run(*words: str) -> tuple[int, str]:
        return main(["data", *words]), "".join(capsys.readouterr())

    monkeypatch.delenv("POLICYGRAIN_DATA", raising=False)
    monkeypatch.setenv("POLICYGRAIN_MIRROR", "http://127.0.0.1:1")
    root = ["--root", str(tmp_path)]
    code, said = run("list", *root)
    assert code == 0 and re.search(r"math500 +500 +greedy +no +math500\.jsonl +.* at cf1c7858bfc1", said)
    assert "--root" in run("fetch", "math500")[1]
    code, said = run("fetch", "math500", "aime24", *root)
    assert code == 2 and "math500: http" in said and "aime24: http" in said
    (tmp_path / "aime24.jsonl").write_text('{"id": 1, "problem": "1+1", "answer": "2"}\n')
    code, said = run("check", *root)
    assert code == 2 and re.search(r"aime24 +WRONG", said) and "1 problems instead of 30" in said
    assert "no such file" in run("check", "aime25", *root)[1]
    assert "'aime27' is no registered problem set. Did you mean 'aime2" in run("check", "aime27", *root)[1]
