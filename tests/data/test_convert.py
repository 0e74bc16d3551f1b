"""Conversion of published rows to problems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policygrain.data import convert, registry, set_files

from ..support.problem_sets import RECORDED, made_up, raw


@pytest.mark.parametrize(
    ("name", "text", "converted"),
    [
        ("last_boxed", r"so \boxed{1}, no: \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("last_boxed", "nothing", ""),
        ("last_boxed", r"\boxed{1} \boxed 2", "2"),
        ("last_boxed", r"\boxed\pi", r"\pi"),
        ("last_boxed", r"\boxed {\frac{1}{2}}.", r"\frac{1}{2}"),
        ("last_boxed", r"\boxed{1} \boxed{never closed", ""),
        ("last_boxed", r"\boxed", ""),
        ("after_hashes", "2+2=4 #### no\n#### 1,234", "1234"),
        ("integer", "27.0", "27"),
        ("integer", "-3.00", "-3"),
        ("integer", "2.5", "2.5"),
        ("strip_dollars", " $\\pi$ ", "\\pi"),
        ("strip_dollars", "$1$, $2$", "$1$, $2$"),
        ("repair_frac", "\x0crac{1}{2}", r"\frac{1}{2}"),
        ("drop_boxed_request", r"Why? Let's think step by step and output the final answer within \boxed{}.", "Why?"),
        ("drop_boxed_request", r"What is \boxed{}?", r"What is \boxed{}?"),
        (
            "drop_answer_line_request",
            "Solve the following math problem step by step. The last line (…) is the answer.\n\nWhy?\n\n"
            'Remember to put your answer on its own line after "Answer:".',
            "Why?",
        ),
    ],
)
def test_conversions(name: str, text: str, converted: str) -> None:
    assert convert.CONVERSIONS[name](text) == converted


ASSERTION = """import numpy as np
def assertion(out, exp, atol):
    if out != exp and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert out == exp
"""
LISTS = st.recursive(
    st.sampled_from([0.0, 1.0, -2.5]),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple)),
    max_leaves=6,
)


@settings(max_examples=300)
@given(LISTS, LISTS)
def test_floats_are_compared_after_type_and_length(out: Any, exp: Any) -> None:
    """np.allclose([], exp) is true. Inner lists and tuples are the same to NumPy."""

    def lists(value: Any) -> Any:
        return [lists(item) for item in value] if isinstance(value, (list, tuple)) else value

    namespace: dict[str, Any] = {}
    exec(convert.CONVERSIONS["type_and_length_first"](ASSERTION), namespace)
    try:
        namespace["assertion"](out, exp, 1e-6)
        passed = True
    except (AssertionError, ValueError):  # ValueError: NumPy has no array of this shape
        passed = False
    assert not passed or (type(out) is type(exp) and lists(out) == lists(exp))
    assert passed or out != exp
    namespace["assertion"]([1.0 + 1e-9], [1.0], 1e-6)


def test_parquet_and_nested_columns(tmp_path: Path) -> None:
    import pandas

    path = tmp_path / "set.parquet"
    row = {"prompt": [{"role": "user", "content": "1+1"}], "reward_model": {"ground_truth": 2.0}, "level": [1]}
    pandas.DataFrame([{**row, "prompt": []}, row]).to_parquet(path)
    fields = {
        "id": {"form": "p-{row:03}"},
        "problem": {"column": ["nowhere", "prompt.0.content"]},
        "answer": {"column": "reward_model.ground_truth", "convert": ["integer"]},
        "keep": ["level"],
        "leave_out": [0],
        "checked": "by hand",
    }
    (found,) = convert.convert(made_up(fields=fields), [path])
    assert (found["id"], found["problem"], found["answer"], list(found["level"])) == ("p-001", "1+1", "2", [1])


@pytest.mark.parametrize("name", ["aime24", "aime25", "amc23", "amc12_83", "math500"])
def test_ids_by_the_registry_equal_the_recorded_ones(name: str, benchmarks_folder: Path) -> None:
    dataset = registry.dataset(name)
    for row in raw(benchmarks_folder, dataset.file):
        row["unique_id"] = row["source"]
        assert convert._identity(row, dataset.fields.id, 0, "here") == row["id"]


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("gsm8k_train", "solution"),
        ("math_train", "solution"),
        ("olympiadbench", "answer_raw"),
        ("amc23", "answer_raw"),
        ("amc12_83", "answer_raw"),
    ],
)
def test_answers_by_the_registry_equal_the_recorded_ones(name: str, column: str, benchmarks_folder: Path) -> None:
    dataset = registry.dataset(name)
    for row in raw(benchmarks_folder, dataset.file):
        answer = row[column]
        for conversion in dataset.fields.answer.convert:
            answer = convert.CONVERSIONS[conversion](answer)
        assert answer == row["answer"], row["id"]


@pytest.mark.parametrize("name", RECORDED)
def test_conversions_do_not_change_recorded_problems(name: str, benchmarks_folder: Path) -> None:
    dataset = registry.dataset(name)
    path = set_files.find(dataset, benchmarks_folder)
    assert path is not None
    rows = raw(benchmarks_folder, path.name)
    for row in rows:
        for conversion in dataset.fields.problem.convert:
            assert convert.CONVERSIONS[conversion](row["problem"]).strip() == row["problem"].strip(), row["id"]
    if dataset.fields.id.column is None:
        # Ids are numbers of source rows, so the missing ids are those of the rows that are left out.
        row_of = {dataset.fields.id.form.format(row=i): i for i in range(dataset.count + len(dataset.fields.leave_out))}
        missing = set(row_of.values()) - {row_of[row["id"]] for row in rows}
        assert missing == set(dataset.fields.leave_out)
