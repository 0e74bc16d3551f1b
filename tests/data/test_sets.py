"""The registered problem sets: what is pinned, the problems that each makes of rows, and their gold answers."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from policygrain.data.coding_sets import type_and_shape_first
from policygrain.data.families import FAMILIES
from policygrain.data.golds import check_golds
from policygrain.data.mathematics_sets import dapo_math_17k, last_boxed
from policygrain.data.sets import SETS, check_file, published_sampling
from policygrain.errors import UserError
from policygrain.files import read_json_lines

from ..support.files import write_lines
from ..support.problem_sets import CODE, RECORDED, raw

TRAINING = ("gsm8k_train", "math_train", "dapo_math_17k")


@pytest.mark.parametrize("name", SETS)
def test_each_set_is_pinned_and_sampled_as_in_the_published_studies(name):
    """2505.22617: AIME and AMC avg@32 at temperature 0.6, the others greedy."""
    of = SETS[name]
    assert re.fullmatch(r"[\w.-]+/[\w.-]+/[0-9a-f]{40}/.+", of.github)
    assert re.fullmatch("[0-9a-f]{40}", of.blob) and re.fullmatch("[0-9a-f]{64}", of.digest)
    sampling = {"n": 32, "temperature": 0.6} if name.startswith(("aime", "amc")) else {"n": 1, "temperature": 0.0}
    assert published_sampling(name) == ({} if name in TRAINING else {**sampling, "top_p": 1.0})


def test_names_and_files_are_unique():
    assert {*RECORDED, *CODE} == set(SETS) and not set(SETS) & set(FAMILIES)
    files = [file for of in SETS.values() for file in of.files]
    assert len(files) == len(set(files))


def asked(row: dict[str, Any], gold: Any) -> dict[str, Any]:
    return {"prompt": [{"content": row["problem"]}], "reward_model": {"ground_truth": gold}}


def copies_left_out(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of DAPO-Math-17k: each at the number in its id, and copies of the first at the other numbers."""
    at = {int(row["id"].removeprefix("dapo-")): row for row in rows}
    copy = rows[0] | {"problem": rows[0]["problem"].replace("$", " \\( ").replace("\\frac", "\\dfrac")}
    return [asked(row, row["answer"]) for row in (at.get(number, copy) for number in range(17917))]


def empty_boxes_left_out(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of MATH's training split: two more, whose box is empty."""
    rows = [*rows[:5341], rows[0] | {"solution": "\\boxed{}"}, rows[5341], rows[0] | {"solution": ""}, *rows[5342:]]
    return [asked(row, {"solution": row["solution"]}) for row in rows]


def columns_of_aime25(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of AIME 2025 with all columns of their source, in its order."""
    columns = ("id", "problem", "solution", "answer", "url", "question")
    whole = [r | {"id": 90 + i, "solution": r["answer"], "question": r["problem"]} for i, r in enumerate(rows)]
    return [{column: row[column] for column in columns} for row in whole]


def decimals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"answer": float(row["answer_raw"])} for row in rows]


ASKED_26 = "\nPlease reason step by step, and put your final answer within \\boxed{}."
# Recorded rows → rows as published, for all that the functions read.
Published = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
PUBLISHED: dict[str, Published] = {
    "aime24": lambda rows: sorted([r | {"answer": f"{int(r['answer']):03}"} for r in rows], key=lambda r: r["url"]),
    "aime25": columns_of_aime25,
    "aime26": lambda rows: [{"answer": r["answer"], "prompt": r["problem"] + ASKED_26} for r in rows],
    "amc23": decimals,
    "amc12_83": decimals,
    "math500": lambda rows: [row | {"unique_id": row["source"]} for row in rows],
    "omni_math_rule": lambda rows: [
        {key: row[key].replace("\\frac", "\x0crac") for key in ("problem", "answer")} for row in rows
    ],
    "olympiadbench": lambda rows: [
        row | {"id": row["id"].split("-")[1], "question": row["problem"], "final_answer": [row["answer_raw"]]}
        for row in rows
    ],
    "minerva": lambda rows: [row | {"solution": f"\\boxed{{?}} $\\boxed{{{row['answer']}}}$"} for row in rows],
    "gsm8k": lambda rows: [{"question": row["problem"], "answer": f"#### {row['answer']}"} for row in rows],
    "gsm8k_train": lambda rows: [{"question": row["problem"], "answer": row["solution"]} for row in rows],
    "math_train": empty_boxes_left_out,
    "dapo_math_17k": copies_left_out,
}


@pytest.mark.parametrize("name", RECORDED)
def test_problems_of_published_rows_are_the_recorded_ones(name, benchmarks_folder):
    assert check_file(SETS[name], benchmarks_folder) == []
    rows = raw(benchmarks_folder, name)
    problems = SETS[name].problems(PUBLISHED[name](rows))
    found = [[text.strip() for text in (p.id, p.problem, p.answer)] for p in problems]
    assert found == [[row[key].strip() for key in ("id", "problem", "answer")] for row in rows]


def test_copies_whose_answers_differ_are_left_out():
    texts = [("$1+1$", "2"), ("$2+2$", "4"), (r"\(1 + 1\)", "3"), ("3+3", "6"), ("2 + 2", "4")]
    rows = [asked({"problem": text}, gold) for text, gold in texts]
    assert [(p.id, p.answer) for p in dapo_math_17k.problems(rows)] == [("dapo-00001", "4"), ("dapo-00003", "6")]


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"so \boxed{1}, no: \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{1} \boxed 2", "2"),
        (r"\boxed\pi", r"\pi"),
        (r"\boxed {\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{1} \boxed{never closed", ""),
        (r"\boxed", ""),
    ],
)
def test_the_last_box_is_the_answer(solution, answer):
    assert last_boxed(solution) == answer


ASSERTION = """import numpy as np
def assertion(out, exp, atol):
    if out != exp and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
"""


@pytest.mark.parametrize(
    ("out", "right"),
    [([1.0 + 1e-9], True), ([1.0], True), ([], False), ((1.0,), False), ([[1.0]], False), (1.0, False)],
)
def test_floats_are_compared_after_type_and_shape(out, right):
    """np.allclose([], exp) is true."""
    namespace: dict[str, Any] = {}
    exec(type_and_shape_first(ASSERTION), namespace)
    with nullcontext() if right else pytest.raises(AssertionError):
        namespace["assertion"](out, [1.0], 1e-6)


# Tests and a solution, and what is said of them; nothing of the first ones.
PROGRAMS = read_json_lines(Path(__file__).with_name("programs.jsonl"))


@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize("case", PROGRAMS, ids=[case["name"] for case in PROGRAMS])
def test_what_is_wrong_with_tests_is_said(case, tmp_path):
    row = {key: case[key] for key in ("tests", "answer") if case[key]} | {"problem": "p", "entry_point": "f"}
    write_lines(path := tmp_path / "own.jsonl", [row, row])
    with pytest.raises(UserError, match=r"own\.jsonl: own-00001: ") if case["says"] else nullcontext() as caught:
        check_golds([path], "numeric")
    assert not caught or case["says"] in str(caught.value)
