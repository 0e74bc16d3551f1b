"""The registered sets: fetched, verified, and made into problems by a function each, which has the name of its set."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import json
import os
import re
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..grading import Options
from ..grading.extraction import boxed
from .problem import Problem, as_row, write_problems
from .sets import ProblemSet, check_file, faults_of

Rows = Iterable[Any]
MIRROR_VARIABLE = "POLICYGRAIN_MIRROR"


def fetch(of: ProblemSet, root: Path) -> str:
    """Fetch a set into ``root``, replacing no file; returns a message. UserError if anything is not as pinned."""
    out = root / of.file
    if out.is_file():
        if faults := check_file(of, root):
            raise UserError(f"{faults[0]}. It is not overwritten; move it away and fetch again.")
        return f"{out}: there already"
    problems = convert(of, _published(of))
    if faults := faults_of(of, [as_row(problem) for problem in problems]):
        raise UserError(f"{of.name}: the source is the pinned one, but makes {'; '.join(faults)}. Please report it.")
    write_problems(out, problems)
    return f"{out}: {len(problems)} problems"


def convert(of: ProblemSet, content: bytes) -> list[Problem]:
    """The problems of a set, of the content of its published file. UserError where it is not as expected."""
    try:
        problems = list(globals()[of.name](_rows(of.github, content)))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{of.name}: a row of its source is not as expected: {error!r}. Please report it.") from error
    problems = [replace(p, problem=p.problem.strip(), answer=p.answer.strip(), source=of.name) for p in problems]
    if empty := [p.id for p in problems if not (p.problem and p.answer)]:
        raise UserError(f"{of.name}: problem or answer of {empty[0]} is empty in its source. Please report it.")
    return problems


def _rows(name: str, content: bytes) -> Rows:
    if name.endswith(".parquet"):
        import pandas

        return pandas.read_parquet(io.BytesIO(content)).to_dict("records")
    if name.endswith(".json"):
        return json.loads(content)
    text = gzip.decompress(content) if name.endswith(".gz") else content
    return map(json.loads, text.splitlines())


def _published(of: ProblemSet) -> bytes:
    """The published file. UserError if it cannot be downloaded or is not the pinned one."""
    base = os.environ.get(MIRROR_VARIABLE, "https://raw.githubusercontent.com").rstrip("/")
    url = f"{base}/{urllib.parse.quote(of.github)}"
    request = urllib.request.Request(url, headers={"User-Agent": "policygrain"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            content: bytes = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"{of.name}: {url} cannot be fetched: {error or type(error).__name__}. Check the network, or set a proxy "
            f"(HTTPS_PROXY) or a mirror ({MIRROR_VARIABLE})."
        ) from error
    if (actual := blob_id(content)) != of.blob:
        raise UserError(f"{of.name}: wrong checksum: {url} has Git blob id {actual} instead of {of.blob}.")
    return content


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _contests(rows: Rows, identity: str = "aime{0}-{1}-{2:02}") -> Iterator[Problem]:
    """Problems named after their addresses, `…/2024_AIME_II_Problems/Problem_3`, with answers such as 7, 007 or 7.0."""
    for row in rows:
        year, contest, number = re.findall(r"(\d{4})_(?:AIME|AMC)_(\w+)_Problems/Problem_(\d+)", row["url"])[0]
        yield Problem(identity.format(year, contest, int(number)), row["problem"], str(int(row["answer"])))


def aime24(rows: Rows) -> Iterable[Problem]:
    """The file is sorted by the text of the addresses; here I comes before II, and 2 before 10."""
    return sorted(_contests(rows), key=lambda problem: problem.id)


aime25 = _contests
amc23 = partial(_contests, identity="amc23-{1}-{2:02}")
amc12_83 = partial(_contests, identity="amc12-{0}-{1}-{2:02}")


def aime26(rows: Rows) -> Iterator[Problem]:
    """The prompts end with a request."""
    request = "\nPlease reason step by step, and put your final answer within \\boxed{}."
    for number, row in enumerate(rows):
        name = "I" if number < 15 else "II"
        yield Problem(f"aime2026-{name}-{number % 15 + 1:02}", row["prompt"].removesuffix(request), row["answer"])


def math500(rows: Rows) -> Iterator[Problem]:
    """The names are paths such as `test/algebra/1.json`."""
    for row in rows:
        identity = row["unique_id"].removesuffix(".json").replace("/", "-")
        yield Problem(f"math500-{identity}", row["problem"], row["answer"])


def minerva(rows: Rows) -> Iterator[Problem]:
    """The answer is the last box of the solution."""
    for number, row in enumerate(rows):
        yield Problem(f"minerva-{number:03}", row["problem"], boxed(row["solution"]) or "")


def olympiadbench(rows: Rows) -> Iterator[Problem]:
    """Answers are between dollar signs."""
    for row in rows:
        answer = re.sub(r"^\$([^$]*)\$$", r"\1", row["final_answer"][0].strip())
        yield Problem(f"olympiadbench-{row['id']}", row["question"], answer)


def omni_math_rule(rows: Rows) -> Iterator[Problem]:
    r"""Where a lost backslash left a form feed in place of \frac, it is put back (17 rows)."""
    for number, row in enumerate(rows):
        problem, answer = (row[name].replace("\x0crac", "\\frac") for name in ("problem", "answer"))
        yield Problem(f"omni-rule-{number:04}", problem, answer)


def gsm8k(rows: Rows, split: str = "test") -> Iterator[Problem]:
    """The answer follows the last ####, with thousands separators."""
    for number, row in enumerate(rows):
        answer = row["answer"].rpartition("####")[2].strip().replace(",", "")
        yield Problem(f"gsm8k-{split}-{number:05}", row["question"], answer)


gsm8k_train = partial(gsm8k, split="train")


def math_train(rows: Rows) -> Iterator[Problem]:
    """Of 7,500 rows, two have an empty box for an answer and are left out."""
    request = "Let's think step by step and output the final answer within \\boxed{}."
    for number, row in enumerate(rows):
        problem = row["prompt"][0]["content"].removesuffix(request)
        if answer := boxed(row["reward_model"]["ground_truth"]["solution"]):
            yield Problem(f"math-train-{number:05}", problem, answer)


def dapo_math_17k(rows: Rows) -> Iterator[Problem]:
    """The first copy of a problem counts, and none if their answers differ (20 problems); the file has 17,917 rows."""
    copies: dict[str, list[Problem]] = defaultdict(list)
    for number, row in enumerate(rows):
        problem = row["prompt"][0]["content"]
        # Without the marks of formulas, the sizes of brackets and fractions, and spaces.
        text = re.sub(r"\s|\$|\\[()\[\],;! ]|\\left|\\right", "", re.sub(r"\\[dt]frac", r"\\frac", problem))
        copies[text].append(Problem(f"dapo-{number:05}", problem, row["reward_model"]["ground_truth"]))
    for same in copies.values():
        if len({copy.answer for copy in same}) == 1:
            yield same[0]


# ---- programs: an answer is a program, and tests decide (docs/coding.md) ---------------------------------------------


def type_and_shape_first(tests: str) -> str:
    """Compare type and shape before floats: np.allclose([], x) is true, so that `[]` would pass for any list."""
    close = "assert np.allclose(out, exp, rtol=1e-07, atol=atol)"
    return tests.replace(close, f"assert type(out) is type(exp) and np.shape(out) == np.shape(exp)\n        {close}")


def humaneval(rows: Rows, name: str = "humaneval") -> Iterator[Problem]:
    """The prompt is code: what comes before the function, and its head, which a completion continues."""
    for row in rows:
        number, prompt = row["task_id"].removeprefix("HumanEval/"), row["prompt"]
        start = [match.start() for match in re.finditer(rf"^def {row['entry_point']}\b", prompt, re.MULTILINE)][-1]
        setup, signature = prompt[:start], prompt[start:]
        options = Options(tests=row["test"], entry_point=row["entry_point"], setup=setup, signature=signature)
        yield Problem(f"{name}-{number}", prompt, prompt + row["canonical_solution"], options=options)


def humaneval_plus(rows: Rows) -> Iterator[Problem]:
    """The published test of task 32 fails for every program, because it takes the value for a list; it is repaired.

    EvalPlus compares type and length before floats; in the file `[]` passes 3 problems.
    """
    wrong, right = "_poly(*candidate(*inp), inp)", "_poly(*inp, candidate(*inp))"
    repaired = (row | {"test": type_and_shape_first(row["test"].replace(wrong, right))} for row in rows)
    return humaneval(repaired, "humaneval_plus")


def mbpp_plus(rows: Rows) -> Iterator[Problem]:
    """Tests of tasks 737, 787 and 794 compare and assert nothing; the assertion is added. `[]` passes 24 problems.

    Two inputs of task 255 are shortened, because their values, combinations of 77 items, are lists of gigabytes.
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
