"""Programs: HumanEval, HumanEval+ and MBPP+. An answer is a program, and tests decide (docs/coding.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..grading import Options
from .problem import Problem
from .sets import Rows, problem_set


def type_and_shape_first(tests: str) -> str:
    """Compare type and shape before floats: np.allclose([], x) is true, so that `[]` would pass for any list."""
    close = "assert np.allclose(out, exp, rtol=1e-07, atol=atol)"
    return tests.replace(close, f"assert type(out) is type(exp) and np.shape(out) == np.shape(exp)\n        {close}")


def function_to_complete(prompt: str, name: str, tests: str) -> Options:
    """Tests, and the prompt's code before the function and its head, which a completion continues."""
    start = [match.start() for match in re.finditer(rf"^def {name}\b", prompt, re.MULTILINE)][-1]
    return Options(tests=tests, entry_point=name, setup=prompt[:start], signature=prompt[start:])


@problem_set(
    github="openai/human-eval/6d43fb980f9fee3c892a914eda09951f772ad10d/data/HumanEval.jsonl.gz",
    blob="998d25196e17af24daf9b6cb3a975fe752528e46",
    digest="25e194064ca986fed9fd7b72acfa2ec6d14ca0317f04f9eed67269bb46d6d3e6",
    count=164,
)
def humaneval(rows: Rows) -> Iterator[Problem]:
    """HumanEval (arXiv 2107.03374). MIT. Its tests are few, and models have seen it since 2021."""
    for row in rows:
        number, prompt = row["task_id"].removeprefix("HumanEval/"), row["prompt"]
        options = function_to_complete(prompt, row["entry_point"], row["test"])
        yield Problem(f"humaneval-{number}", prompt, prompt + row["canonical_solution"], options=options)


@problem_set(
    github="evalplus/humanevalplus_release/200defce9e3429d28ca215b6dd061c0f7f31c18b/HumanEvalPlus-OriginFmt.jsonl.gz",
    blob="e0944599da09a0460a7a2d2be290afaf9d88903a",
    digest="7b94971b48409ff473d6f2e6f012497a63ae5b7e50256dc1525fb30e58a7e2f4",
    count=164,
)
def humaneval_plus(rows: Rows) -> Iterator[Problem]:
    """HumanEval+ 0.1.10 (arXiv 2305.01210): HumanEval's problems with about 80 times as many tests. Apache-2.0.

    The published test of task 32 fails for every program, because it takes the value for a list; it is repaired. Type
    and shape are compared before floats (EvalPlus compares type and length); in the file `[]` passes 3 problems.
    """
    for row in rows:
        number, prompt = row["task_id"].removeprefix("HumanEval/"), row["prompt"]
        tests = row["test"].replace("_poly(*candidate(*inp), inp)", "_poly(*inp, candidate(*inp))")
        options = function_to_complete(prompt, row["entry_point"], type_and_shape_first(tests))
        yield Problem(f"humaneval_plus-{number}", prompt, prompt + row["canonical_solution"], options=options)


@problem_set(
    github="evalplus/mbppplus_release/dadf43da556a00f7bacd71cb154f2932757d9144/MbppPlus-OriginFmt.jsonl.gz",
    blob="24ffc1c0a211ceaa750f28d6e9385bce3c421526",
    digest="a9530f401e0a0664f63368ca626084d12614f345d1bae3c90204ee16aadd5be1",
    count=378,
    compared=lambda row: {"seconds": 60.0} if row.get("id") == "mbpp_plus-599" else {},
)
def mbpp_plus(rows: Rows) -> Iterator[Problem]:
    """MBPP+ 0.2.0 (arXiv 2305.01210): problems of MBPP (2108.07732) that were checked by hand. Apache-2.0.

    Tests are about 35 times as many. Those of tasks 737, 787 and 794 compare and assert nothing; the assertion is
    added. Type and shape are compared before floats; in the file `[]` passes 24 problems. Two inputs of task 255 are
    shortened, because their values, combinations of 77 items, are lists of gigabytes.
    """
    compared = "        exact_match = exp == (out is not None)\n"
    for row in rows:
        tests = type_and_shape_first(row["test"])
        if row["task_id"] == 255:
            tests = re.sub(r"(\]), 7[67]\]", r"\1, 7]", tests)
        if "assert " not in tests:
            tests = tests.replace(compared, f"{compared}    assert exact_match\n")
        options = Options(tests=tests, entry_point=re.findall(r"assertion\((\w+)\(\*inp", tests)[0])
        problem = f"{row['prompt']}\nYour program should pass this test:\n{row['test_list'][0]}"
        yield Problem(f"mbpp_plus-{row['task_id']}", problem, row["code"], options=options)
