"""Answers that look right and are wrong, and the reverse; responses, numbers and files; order, bounds and names."""

import json
import subprocess
import sys
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policygrain.cli import main
from policygrain.data.sources import load
from policygrain.errors import UserError
from policygrain.grading import Item, MathGrader, NumericGrader, Options, open_grader
from policygrain.grading.answers import MAX_LENGTH, grade, grade_directly
from policygrain.grading.extraction import boxed, extract
from policygrain.grading.notation import parse_number

from ..support.files import RECORDED, read_lines, write_lines
from . import items, read


@pytest.fixture(scope="module")
def grader():
    with MathGrader(workers=2) as opened:
        yield opened


# Fields: kind, gold, answer, expected ("correct" or "wrong") and options. docs/grading.md explains the choices.
ADVERSARIAL = read("adversarial.jsonl")
# Fields: kind, gold, prediction or completion, expected (also an outcome), and perhaps extraction and problem.
REPORTED = read("reported.jsonl")


@pytest.mark.parametrize("kind", sorted({c["kind"] for c in ADVERSARIAL}))
def test_adversarial_answers(grader, kind):
    cases = [c for c in ADVERSARIAL if c["kind"] == kind]
    options = [Options(**{name: c[name] for name in c.keys() & Options.__dataclass_fields__}) for c in cases]
    outcomes = grader.compare([Item(c["gold"], c["answer"], o) for c, o in zip(cases, options, strict=True)])
    different = [
        f"{c['gold']} <- {c['answer']!a}: {o}"
        for c, o in zip(cases, outcomes, strict=True)
        if (o == "correct") != (c["expected"] == "correct") or o in ("timeout", "error")
    ]
    assert not different


@pytest.mark.parametrize("extraction", sorted({case.get("extraction", "boxed") for case in REPORTED}))
def test_reported_answers(extraction, tmp_path):
    """All in one file for each protocol, as `policygrain grade` reads them."""
    cases = [case for case in REPORTED if case.get("extraction", "boxed") == extraction]
    file, out = write_lines(tmp_path / "in.jsonl", cases), tmp_path / "out.jsonl"
    with MathGrader(workers=2, extraction=extraction) as opened:
        grade(file, out, opened, Options())
    allowed = {"wrong": {"incorrect", "unparsable", "unreadable_gold"}}
    graded = read_lines(out)
    assert not [row for row in graded if row["status"] not in allowed.get(row["expected"], {row["expected"]})]


@pytest.mark.release
def test_gold_answers_are_right(grader, benchmarks_folder):
    problems = [problem for name in RECORDED for problem in load(name, benchmarks_folder)]
    golds = [Item(p.answer, boxed(p.answer) or p.answer, p.options) for p in problems]
    assert set(grader.compare(golds)) == {"correct"}
    assert grader.unreadable_golds(golds) == []


# Fields: line, of a file that is graded, and status.
LINES = read("lines.jsonl")


def test_lines_are_kept_and_graded(tmp_path, capsys):
    file, out = tmp_path / "answers.jsonl", tmp_path / "graded.jsonl"
    file.write_text("\n".join(json.dumps(row["line"]) for row in LINES) + "\n\n")
    command = ["grade", str(file), "--out", str(out), "--workers", "1"]
    assert main(command) == 0
    expected = [row["line"] | {"correct": row["status"] == "correct", "status": row["status"]} for row in LINES]
    assert read_lines(out) == expected
    assert "3 correct, 2 incorrect, 2 unparsable, 0 timeout, 0 error, 3 unreadable_gold" in capsys.readouterr().out
    assert main([*command, "--strict"]) == 2
    assert f"{file}, line 7: the gold answer 'np.arcsin" in capsys.readouterr().err


GOOD = '{"gold": "1", "prediction": "1"}\n'
BAD = ["{", "[1]", '{"prediction": "1"}', '{"gold": "1"}', '{"gold": "1", "prediction": []}', '"\xff"', "[" * 9999]
BAD += ['{"gold": true, "prediction": "1"}', f'{{"gold": {"1" * 5000}, "prediction": "1"}}']
BAD += [f'{{"gold": "1", "prediction": {"1" * 5000}}}']


@pytest.mark.parametrize(
    ("content", "says"), [*((GOOD + line, ", line 2: ") for line in BAD), ("\n", ": is empty")], ids=range(len(BAD) + 1)
)
def test_a_bad_line_is_named(tmp_path, content, says, grader):
    file = tmp_path / "answers.jsonl"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=f"{file}{says}"):
        grade(file, tmp_path / "graded.jsonl", grader, Options())
    assert not (tmp_path / "graded.jsonl").exists()


# Fields: protocol, response, answer and perhaps list_answer. Those of answer_line follow `is_correct_minerva` of verl's
# math_dapo, those of qwen_math `extract_answer` of Qwen2.5-Math.
RESPONSES = read("responses.jsonl")


@pytest.mark.parametrize("protocol", sorted({case["protocol"] for case in RESPONSES}))
def test_answers_of_responses(protocol):
    cases = [case for case in RESPONSES if case["protocol"] == protocol]
    found = [extract(case["response"], protocol, case.get("list_answer", False)) for case in cases]
    assert [(c, f) for c, f in zip(cases, found, strict=True) if f != c["answer"]] == []


@given(st.lists(st.sampled_from(["\\boxed{", "{", "}", "a", "\\boxed"]), max_size=12).map("".join))
def test_the_last_complete_box(text):
    """As the definition says it, in quadratic time; a response that ends in a box has no answer."""
    found = None
    for start in (i for i in range(len(text)) if text.startswith("\\boxed{", i)):
        depth, begin, found = 1, start + len("\\boxed{"), None
        for end in range(begin, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                found = text[begin:end]
                break
    assert boxed(text) == found


@pytest.mark.parametrize(
    "piece", ["\\boxed{", "\\boxed{1}", "{", "}", "boxed", "Answer:", "$", "1", "-", " ", "the answer is", "\n", "####"]
)
def test_reading_takes_linear_time(piece):
    begin = time.monotonic()
    for protocol in {case["protocol"] for case in RESPONSES}:
        extract(piece * 50_000, protocol)
        extract(piece * 50_000, protocol, list_answer=True)
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize("case", read("numeric.jsonl"), ids=lambda case: case["response"])
def test_outcomes(case):
    assert NumericGrader().grade([Item(case["gold"], case["response"])]) == [case["outcome"]]


@given(st.integers(-(10**30), 10**30), st.integers(1, 99), st.sampled_from([",", " "]))
def test_numbers_have_their_value(value, bottom, separator):
    """Digits may be grouped by threes."""
    assert parse_number(f"{value:,}".replace(",", separator)) == Fraction(value)
    for text in (f"{value}/{bottom}", f"{'-' * (value < 0)}\\frac{{{abs(value)}}}{{{bottom}}}"):
        assert parse_number(text) == Fraction(value, bottom)


@pytest.mark.parametrize(
    "text", ["5/0", "", "-", "1..2", "1.2.3", "--1", "1e", "\\frac{1}{0}", "1e5000", "1" * 41, "1,23", "1 2", "1, 234"]
)
def test_no_number(text):
    assert parse_number(text) is None


def test_order_and_duplicates(grader, monkeypatch):
    tasks = []
    run = grader.pool.run
    monkeypatch.setattr(grader.pool, "run", lambda given: tasks.append(len(given)) or run(given))
    answers = [f"z \\cdot {i % 5}" for i in range(100)]
    expected = ["correct" if i % 5 == 3 else "incorrect" for i in range(100)]
    assert grader.compare(items("3z", *answers)) == expected
    assert tasks == [5]


def test_an_unreadable_gold_answer_is_an_error_that_names_the_problem(grader):
    golds = [Item(gold, "\\boxed{1}", name=f"q-{gold}") for gold in ("1", "np.arcsin(10/13)", "x")]
    assert grader.unreadable_golds(golds) == [golds[1]]
    with pytest.raises(UserError, match=r"q-np.*: the gold answer 'np\.arcsin"):
        grader.grade(golds)
    assert grader.compare(items("x+1", "1+x")) == ["correct"]


def test_an_answer_is_bounded(grader):
    """The time limit is for the main process, where no worker's limit holds."""
    begin = time.monotonic()
    deep, long = "{" * 30_000 + "1" + "}" * 30_000, "1+" * 50_000 + "1"
    for gold in (deep, long):
        with pytest.raises(UserError, match="cannot be read as mathematics"):
            grader.grade(items(gold, "\\boxed{1}"))
        assert grader.compare(items(gold, gold)) in (["correct"], ["unparsable"])
        assert len(grader.unreadable_golds(items(gold, ""))) == 1
    assert grade_directly("1", "x" * (MAX_LENGTH + 1), Options()) == "unparsable"
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("name", ["numeric", "math"])
def test_graders_by_name_and_protocol(name):
    response = "I say \\boxed{4}.\nAnswer: $5$"
    for extraction, gold in (("boxed", "4"), ("answer_line", "5"), ("qwen_math", "4")):
        with open_grader(name, extraction) as opened:
            assert opened.grade(items(gold, response)) == ["correct"], extraction
            assert opened.name.startswith(name) and (extraction in opened.name) == (extraction != "boxed")
    with pytest.raises(UserError, match="Did you mean 'answer_line'"):
        open_grader(name, "answer_lines")
    with pytest.raises(UserError, match=f"Did you mean '{name}'"):
        open_grader(f"{name}s")


def test_the_room_is_imported_without_computer_algebra():
    heavy = "{'sympy', 'math_verify', 'pebble', 'torch', 'transformers'}"
    code = f"import sys, policygrain.grading; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
