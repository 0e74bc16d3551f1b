"""A user's own problem files: how lines are read, and what `policygrain data check` says about a file."""

import pytest

from policygrain.cli import main
from policygrain.data.problem import read_problems
from policygrain.errors import UserError
from policygrain.grading import Options

from ..support.files import write_lines

GOOD = '{"id": "own-1", "problem": "1+1", "answer": "2"}'


def test_keys_that_say_how_answers_are_compared_and_null_for_a_missing_key(tmp_path):
    path = tmp_path / "own.jsonl"
    line = '{"id": null, "problem": "p", "answer": 0, "source": null, "steps": null, "list_answer": true, '
    path.write_text(f'{line}"absolute_tolerance": 0.1}}\n' * 2)
    first, second = read_problems(path)
    assert first.options == Options(list_answer=True, absolute_tolerance=0.1)
    assert (first.id, first.answer, first.source, first.steps, second.id) == ("own-00001", "0", "own", "", "own-00002")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"problem": "p", "answer": "1", "list_answer": "yes"}', "list_answer: expected .*, got"),
        ('{"problem": "p", "answer": "1", "relative_tolerance": "much"}', "relative_tolerance: expected .*, got"),
        ('{"problem": "p", "answer": "1", "absolute_tolerance": -1}', "absolute_tolerance: expected .*, got"),
        ('{"problem": "p", "tests": "assert f(1)"}', "no 'entry_point'"),
        ("{broken", "not JSON"),
        ('{"problem": "1+1"}', "no 'answer'; the keys are 'problem'"),
        ('{"problem": ["p"], "answer": "1"}', r"problem: expected a text or a number, got \['p'\]"),
        ('{"problem": "p", "answer": true}', "answer: expected a text or a number, got True"),
        # JSON allows it; no tokenizer can encode it.
        (r'{"problem": "\ud800", "answer": "1"}', "contains half a character"),
        (r'{"problem": "1", "answer": "\udfff"}', "contains half a character"),
    ],
)
def test_a_line_that_is_no_problem_is_named(line, message, tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(UserError, match=rf"set\.jsonl, line 2: {message}"):
        read_problems(path)


# Case → gold answers, exit status and what is said.
REPORTED: dict[str, tuple[list[str], int, str]] = {
    "truth values": (["true", "False", "Yes"], 0, "right"),
    "sentences": (["5", "All primes except two"], 0, "answers in words, which only the same words equal: own-00002"),
    "GSM8K's solutions": (["We compute.\n#### 5"], 2, "own-00001"),
    "cases": ([r"\begin{cases}1&n\text{ odd}\\2&n\text{ even}\end{cases}"], 0, "right"),
    "repeated problems": (["5"] * 96, 0, "96 lines are 3 different problems"),
}


@pytest.mark.parametrize("name", REPORTED)
def test_own_answers(name, tmp_path, capsys):
    golds, code, says = REPORTED[name]
    rows = [{"problem": f"problem {i % 3}", "answer": gold} for i, gold in enumerate(golds)]
    write_lines(tmp_path / "own.jsonl", rows)
    assert main(["data", "check", "own.jsonl", "--root", str(tmp_path)]) == code
    printed = capsys.readouterr()
    assert says in printed.out + printed.err


@pytest.mark.parametrize("name", ["own.parquet", "own.json", "own.csv"])
def test_other_formats_are_refused(name, tmp_path, capsys):
    (tmp_path / name).touch()
    assert main(["data", "check", name, "--root", str(tmp_path)]) == 2
    assert ".jsonl" in capsys.readouterr().err
