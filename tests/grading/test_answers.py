"""Answers that look right and are wrong, right ones that look different, those of public bug reports, and files."""

import json

import pytest

from policygrain.cli import main
from policygrain.data.sources import load
from policygrain.errors import UserError
from policygrain.files import read_json_lines
from policygrain.grading import Item, MathGrader, Options
from policygrain.grading.answers import grade
from policygrain.grading.extraction import boxed

from ..support.files import write_lines
from ..support.problem_sets import RECORDED
from . import read

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
    graded = read_json_lines(out)
    assert not [row for row in graded if row["status"] not in allowed.get(row["expected"], {row["expected"]})]


@pytest.mark.release
def test_gold_answers_are_right(grader, benchmarks_folder):
    problems = [problem for name in RECORDED for problem in load(name, benchmarks_folder)]
    golds = [Item(p.answer, boxed(p.answer) or p.answer, p.options) for p in problems]
    assert set(grader.compare(golds)) == {"correct"}
    assert grader.unreadable_golds(golds) == []


# ---- files of answers ----------------------------------------------------------------------------------------------

# Lines and their statuses.
ROWS = [
    ({"gold": "1/2", "prediction": "\\frac12", "note": "é", "id": 3}, "correct"),
    ({"gold": 2, "completion": "\\boxed{1} \\boxed{2} 3"}, "correct"),
    ({"gold": "2", "completion": "2"}, "unparsable"),
    ({"gold": "2", "prediction": "\\boxed{3}", "completion": "\\boxed{2}"}, "incorrect"),
    ({"gold": "2", "prediction": None}, "unparsable"),
    ({"gold": "2", "prediction": "3", "correct": "?", "status": "?"}, "incorrect"),
    ({"gold": "np.arcsin(10/13)", "prediction": "2"}, "unreadable_gold"),
    ({"gold": "{" * 30_000 + "2" + "}" * 30_000, "prediction": "2"}, "unreadable_gold"),
    ({"gold": "\ud800", "prediction": "2"}, "unreadable_gold"),
    ({"gold": "x+1", "prediction": "1+x"}, "correct"),
]


def test_lines_are_kept_and_graded(tmp_path, capsys):
    file, out = tmp_path / "answers.jsonl", tmp_path / "graded.jsonl"
    file.write_text("\n".join(json.dumps(row) for row, _ in ROWS) + "\n\n")
    command = ["grade", str(file), "--out", str(out), "--workers", "1"]
    assert main(command) == 0
    expected = [row | {"correct": status == "correct", "status": status} for row, status in ROWS]
    assert read_json_lines(out) == expected
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
