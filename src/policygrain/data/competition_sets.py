"""Mathematics of competitions: AIME, AMC, OlympiadBench, Omni-MATH. Problems of AIME and AMC are © MAA."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .problem import Problem
from .problem_set import Rows, problem_set

# Of this repository only the folder `evaluation` has a licence, MIT.
QWEN_MATH = "QwenLM/Qwen2.5-Math/a45202bd16f1ec06f433442dc1152d0074773465/evaluation/data"


def contest(url: str) -> tuple[str, str, int]:
    """2024, II, 3 of the address `…/2024_AIME_II_Problems/Problem_3`; 2022, 12A, 3 of `…/2022_AMC_12A_…`."""
    year, name, number = re.findall(r"(\d{4})_(?:AIME|AMC)_(\w+)_Problems/Problem_(\d+)", url)[0]
    return year, name, int(number)


@problem_set(
    github=f"{QWEN_MATH}/aime24/test.jsonl",
    blob="bb72e176e8d30c09cd67037e17cfc41e6ff48f70",
    digest="2ed5ff20146308f56b655e2f0f5d5761389c6693b83b1af260726615192a8444",
    count=30,
    n=32,
    temperature=0.6,
)
def aime24(rows: Rows) -> Iterator[Problem]:
    """AIME 2024, I and II. All answers agree with six other public copies, which may share an ancestor.

    The file is sorted by the text of the addresses, and its answers have leading zeros.
    """
    for row in sorted(rows, key=lambda row: contest(row["url"])):
        year, name, number = contest(row["url"])
        yield Problem(f"aime{year}-{name}-{number:02}", row["problem"], str(int(row["answer"])))


@problem_set(
    github="armenjeddi/mcd/76771f969048ebd77a1b4261b0a3469192c6f92a/evaluation/data/aime25/test.jsonl",
    blob="c792f81cf0f3fa1568566343c73677002f0817f6",
    digest="5edfb32994264f273a4bb9b3c62d1e96e8a69a5377df19acce4f72930f0d189e",
    count=30,
    n=32,
    temperature=0.6,
)
def aime25(rows: Rows) -> Iterator[Problem]:
    """AIME 2025, I and II. The repository has no licence for them.

    Public copies word the problems differently, so scores with different copies are not of the same prompts. All
    answers agree with three other copies. Two problems hold figures as TikZ code or as a table of text.
    """
    for row in rows:
        year, name, number = contest(row["url"])
        yield Problem(f"aime{year}-{name}-{number:02}", row["problem"], row["answer"])


@problem_set(
    github=f"{QWEN_MATH}/amc23/test.jsonl",
    blob="6894ad7c49a0b3a64210af32954f4d049d934ea0",
    digest="462d8693f51e36bd989e7a8c5c106d70a7315cb3bb853673a1d10bd5d8d621f5",
    count=40,
    n=32,
    temperature=0.6,
)
def amc23(rows: Rows) -> Iterator[Problem]:
    """AMC 12 of 2023, the 40 problems with integer answers, which are all among the 83 of amc12_83.

    Not the contest as it was set: choices are left out and questions reworded so that each answer is an integer.
    15 of them are in DAPO-Math-17k, nearly word for word. The file writes answers as decimals (27.0).
    """
    for row in rows:
        _, name, number = contest(row["url"])
        yield Problem(f"amc23-{name}-{number:02}", row["problem"], f"{row['answer']:.0f}")


@problem_set(
    github="agentica-project/rllm/874daa4acb7f451dc2a4b2b6e8ce28f5aa88d1f5/rllm/data/test/math/amc.json",
    blob="ac11f74f22c4b79e9bf4aca53c885fcd35413749",
    digest="8c64cfb8272540020d53c96c289c3334440b25f93691f18a2b68e999fdbfda84",
    count=83,
    n=32,
    temperature=0.6,
)
def amc12_83(rows: Rows) -> Iterator[Problem]:
    """AMC 12 of 2022 and 2023, the 83 problems of AI-MO/aimo-validation-amc. The repository is MIT.

    Not the contests as they were set, see amc23. 34 of them are in DAPO-Math-17k, nearly word for word. Papers call
    either of the two "AMC"; say which.
    """
    for row in rows:
        year, name, number = contest(row["url"])
        yield Problem(f"amc12-{year}-{name}-{number:02}", row["problem"], f"{row['answer']:.0f}")


@problem_set(
    github=f"{QWEN_MATH}/olympiadbench/test.jsonl",
    blob="ec36280b1de8f5bbee92da696c2ae84f5f6e6beb",
    digest="f594b97980d552c7193c49528befdfa6b4f902eeb685515d4f2518bb5ca742cc",
    count=675,
    n=1,
    list_answer="is_multiple_answer",
    absolute_tolerance="error",
    text=("olympiadbench-1782", "olympiadbench-1965", "olympiadbench-2045"),
)
def olympiadbench(rows: Rows) -> Iterator[Problem]:
    """OlympiadBench (arXiv 2402.14008), open-ended English mathematics without figures (OE_TO_maths_en_COMP).

    675 rows; some papers say 674. 94 of them ask for several answers, all of which count as one; graders that compare
    with the first one only score them differently. One row allows an error of 0.1, and seven name a unit that the
    answer leaves out. 50 of them are in DAPO-Math-17k, nearly word for word; 6 of them are in MATH's training split.
    """
    for row in rows:
        answer = re.sub(r"^\$([^$]*)\$$", r"\1", row["final_answer"][0].strip())
        columns = {name: row[name] for name in ("is_multiple_answer", "error", "unit", "answer_type")}
        yield Problem(f"olympiadbench-{row['id']}", row["question"], answer, columns=columns)


@problem_set(
    # The revision that HELM pins. Its content has not been seen: columns and file name are as public code has them.
    hub="KbsdJames/Omni-MATH/40ba231d8f16e29ecd40e6407e2c8640145a8f62",
    hub_files=("test.jsonl",),
    files=["omni_math_full.jsonl"],  # not omni_math.jsonl, which is what some folders call the subset
    digest=None,
    count=4428,
    n=1,
)
def omni_math(rows: Rows) -> Iterator[Problem]:
    r"""Omni-MATH (arXiv 2410.07985), all of it. Apache-2.0 by the dataset's card.

    Part of its answers are sentences, which rules take for wrong: a score by rules is a lower bound. Form feeds where
    \frac lost its backslash are left as published.
    """
    for number, row in enumerate(rows):
        yield Problem(f"omni-{number:04}", row["problem"], row["answer"])


@problem_set(
    github="KbsdJames/omni-math-rule/4793415ef37d31c9cdb4e5b82dbe172f76f8cf08/omni_math_rule.jsonl",
    blob="a793db0d0076592c0d0538d9c1d644ad82b333ee",
    files=["omni_math_rule.jsonl", "omni_math.jsonl"],
    digest="70f07fe205298831a413a82bf9c4dd9cecbc8182290205724c1ea26074913886",
    count=2821,
    n=1,
    # 0013 is a sum with dots.
    text=[f"omni-rule-{i:04}" for i in (4, 13, 47, 70, 85, 341, 403, 849, 918, 1386, 1393)],
)
def omni_math_rule(rows: Rows) -> Iterator[Problem]:
    r"""Omni-MATH-Rule, the 2,821 of Omni-MATH's 4,428 problems whose answers rules can grade; say so beside a number.

    Thirteen rows repeat an earlier problem. Where a lost backslash left a form feed in place of \frac, it is put back
    (17 rows); two rows hold other control characters. The repository has no licence for the data. 389 of them are in
    DAPO-Math-17k, nearly word for word, and 59 of them are in MATH's training split.
    """
    for number, row in enumerate(rows):
        problem, answer = (row[name].replace("\x0crac", "\\frac") for name in ("problem", "answer"))
        yield Problem(f"omni-rule-{number:04}", problem, answer)
