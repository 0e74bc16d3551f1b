"""The registered problem sets: pins, problems of published rows, fetching from a mirror on this machine, checks."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import yaml

from policygrain.cli import main
from policygrain.data import published
from policygrain.data.families import FAMILIES
from policygrain.data.problem import Problem, read_problems
from policygrain.data.published import blob_id, fetch
from policygrain.data.sets import SETS, ProblemSet, check_file, content_digest, load_set, published_sampling
from policygrain.errors import UserError
from policygrain.files import atomic_bytes

from ..support.files import CODE, RECORDED, write_lines

PUBLISHED = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text())


def test_sets_are_pinned_and_sampled_as_in_the_published_studies():
    """2505.22617: AIME and AMC avg@32 at temperature 0.6, the others greedy."""
    assert set(PUBLISHED) == set(SETS) and not set(SETS) & set(FAMILIES)
    assert len({of.file for of in SETS.values()}) == len(SETS)
    for name, of in SETS.items():
        assert re.fullmatch(r"[\w.-]+/[\w.-]+/[0-9a-f]{40}/.+", of.github)
        assert re.fullmatch("[0-9a-f]{40}", of.blob) and re.fullmatch("[0-9a-f]{64}", of.digest)
        contest, training = name.startswith(("aime", "amc")), name in ("gsm8k_train", "math_train", "dapo_math_17k")
        sampling = {"n": 32, "temperature": 0.6} if contest else {"n": 1, "temperature": 0.0}
        assert published_sampling(name) == ({} if training else {**sampling, "top_p": 1.0})


@pytest.mark.parametrize("name", PUBLISHED)
def test_problems_of_published_rows(name):
    problems = getattr(published, name)(PUBLISHED[name]["rows"])
    assert [[p.id, p.problem, p.answer] for p in problems] == PUBLISHED[name]["problems"]


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_files_are_the_pinned_sets(name, benchmarks_folder):
    assert check_file(SETS[name], benchmarks_folder) == []


@pytest.mark.parametrize("out", [[1.0 + 1e-9], [1.0], [], (1.0,), [[1.0]], 1.0], ids=str)
def test_floats_are_compared_after_type_and_shape(out):
    """np.allclose([], exp) is true; the first two are right."""
    compare = "if out != exp:\n        assert np.allclose(out, exp, rtol=1e-07, atol=atol)"
    given = {"np": numpy, "out": out, "exp": [1.0], "atol": 1e-6}
    with nullcontext() if out in ([1.0 + 1e-9], [1.0]) else pytest.raises(AssertionError):
        exec(published.type_and_shape_first(compare), given)


ONE = {"id": 1, "problem": "1+1", "answer": "2"}
ROWS = [{"n": i, "question": f"How much is {i} and {i}?", "answer": f"{2 * i}"} for i in range(300)]
SOURCE = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def made_up(source: bytes = SOURCE, **changes: Any) -> ProblemSet:
    """A set that lives in a file with these bytes."""
    digest = content_digest({"problem": row["question"], "answer": row["answer"]} for row in ROWS)
    known = {"github": f"some/where/{'0' * 40}/data/a file.jsonl", "blob": blob_id(source), "digest": digest}
    return ProblemSet(**{"name": "made_up", "file": "made_up.jsonl", "count": len(ROWS)} | known | changes)


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Put the file of a set into the mirror."""

    def problems(rows: published.Rows) -> list[Problem]:
        return [Problem(f"made-up-{row['n']}", row["question"], row["answer"]) for row in rows]

    def write(of: ProblemSet, content: bytes) -> Path:
        atomic_bytes(path := tmp_path / "mirror" / of.github, content)
        return path

    monkeypatch.setenv("POLICYGRAIN_MIRROR", f"file://{tmp_path}/mirror/")
    monkeypatch.setattr(published, "made_up", problems, raising=False)
    return write


FORMATS = {"jsonl": SOURCE, "json": json.dumps(ROWS).encode(), "parquet": pandas.DataFrame(ROWS).to_parquet()}


@pytest.mark.parametrize("form", FORMATS)
def test_a_set_is_fetched_once_and_no_file_is_overwritten(form, publish, tmp_path):
    of, folder = made_up(FORMATS[form], github=f"some/where/data/a file.{form}"), tmp_path / "new" / "folder"
    source = publish(of, FORMATS[form])
    assert fetch(of, folder).endswith("made_up.jsonl: 300 problems")
    problems = read_problems(folder / "made_up.jsonl")
    assert [(p.problem, p.answer) for p in problems] == [(row["question"], row["answer"]) for row in ROWS]
    assert problems[7].id == "made-up-7" and [path.name for path in folder.iterdir()] == ["made_up.jsonl"]
    source.unlink()
    assert fetch(of, folder).endswith("there already")
    write_lines(folder / "made_up.jsonl", [ONE])
    with pytest.raises(UserError, match=r"1 problems instead of 300.*not overwritten"):
        fetch(of, folder)


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


@pytest.mark.parametrize("name", CODE)
def test_fetching_programs(name, publish, tmp_path, benchmarks_folder):
    publish(SETS[name], (benchmarks_folder / "code" / Path(SETS[name].github).name).read_bytes())
    fetch(SETS[name], tmp_path)
    assert check_file(SETS[name], tmp_path) == []


def test_check_names_each_fault(tmp_path):
    """White space and ids are not part of the digest; order, problems and answers are."""
    two = {"id": 2, "problem": "2+2", "answer": "4"}
    compared = [{"relative_tolerance": 0.1}, {"list_answer": True, "at": [1]}]
    of = made_up(count=2, digest=content_digest([ONE, two]), compared=compared)
    for rows, fault in (
        ([two, ONE], "wrong content"),
        ([ONE, {**two, "answer": "5"}], "wrong content"),
        ([ONE], "1 problems instead of 2"),
        ([ONE, {**two, "id": 1}], "1 ids occur more than once"),
        ([{**ONE, "id": "x"}, {**two, "problem": " 2+2\n"}], ""),
    ):
        write_lines(tmp_path / "made_up.jsonl", rows)
        found = "; ".join(check_file(of, tmp_path))
        assert fault in found and bool(fault) == bool(found)
    options = [p.options for p in load_set(of, tmp_path, "here")]
    assert [(o.relative_tolerance, o.list_answer) for o in options] == [(0.1, False), (0.1, True)]


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
    assert code == 2 and re.search(r"math500: http.*refused.*HTTPS_PROXY", said) and "aime24: http" in said
    write_lines(tmp_path / "aime24.jsonl", [ONE])
    code, said = run("check", *root)
    assert code == 2 and "aime24: WRONG" in said and "1 problems instead of 30" in said
    assert "no such file" in run("check", "aime25", *root)[1]
    assert "Did you mean 'aime2" in run("check", "aime27", *root)[1]
    assert "nor a .jsonl file" in run("check", "own.parquet", *root)[1]
