r"""Public sets of mathematics: benchmarks, and sets to train on. Problems of AIME and AMC are © MAA.

Each is a function of the rows of its published file. docs/data.md says what to know about scores on it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from ..grading.extraction import all_boxes
from .problem import Problem, Row
from .sets import Rows, problem_set

# Of this repository only the folder `evaluation` has a licence, MIT.
QWEN_MATH = "QwenLM/Qwen2.5-Math/a45202bd16f1ec06f433442dc1152d0074773465/evaluation/data"
GSM8K = "openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data"
contest_set = partial(problem_set, n=32, temperature=0.6)  # avg@32, as in arXiv 2505.22617


def contest(url: str) -> tuple[str, str, int]:
    """2024, II, 3 of the address `…/2024_AIME_II_Problems/Problem_3`; 2022, 12A, 3 of `…/2022_AMC_12A_…`."""
    year, name, number = re.findall(r"(\d{4})_(?:AIME|AMC)_(\w+)_Problems/Problem_(\d+)", url)[0]
    return year, name, int(number)


def after_hashes(solution: str) -> str:
    """The text after the last ####, without thousands separators."""
    return solution.rpartition("####")[2].strip().replace(",", "")


def last_boxed(solution: str) -> str:
    r"""The argument of the last `\boxed`, in braces or one token as in `\boxed 2`; empty if there is none."""
    start = solution.rfind("\\boxed")
    if start < 0:
        return ""
    rest = solution[start + len("\\boxed") :].lstrip()
    if rest.startswith("{"):
        return next((solution[box.begin : box.end].strip() for box in all_boxes(solution) if box.start == start), "")
    token = re.match(r"\\[a-zA-Z]+|[^\\}$]", rest)
    return token[0] if token else ""


# ---- competitions ---------------------------------------------------------------------------------------------------


@contest_set(
    github=f"{QWEN_MATH}/aime24/test.jsonl",
    blob="bb72e176e8d30c09cd67037e17cfc41e6ff48f70",
    digest="2ed5ff20146308f56b655e2f0f5d5761389c6693b83b1af260726615192a8444",
    count=30,
)
def aime24(rows: Rows) -> Iterator[Problem]:
    """AIME 2024, I and II. All answers agree with six other public copies, which may share an ancestor.

    The file is sorted by the text of the addresses, and its answers have leading zeros.
    """
    for row in sorted(rows, key=lambda row: contest(row["url"])):
        year, name, number = contest(row["url"])
        yield Problem(f"aime{year}-{name}-{number:02}", row["problem"], str(int(row["answer"])))


@contest_set(
    github="armenjeddi/mcd/76771f969048ebd77a1b4261b0a3469192c6f92a/evaluation/data/aime25/test.jsonl",
    blob="c792f81cf0f3fa1568566343c73677002f0817f6",
    digest="5edfb32994264f273a4bb9b3c62d1e96e8a69a5377df19acce4f72930f0d189e",
    count=30,
)
def aime25(rows: Rows) -> Iterator[Problem]:
    """AIME 2025, I and II. The repository has no licence for them.

    All answers agree with three other copies. Two problems hold figures as TikZ code or as a table of text.
    """
    for row in rows:
        year, name, number = contest(row["url"])
        yield Problem(f"aime{year}-{name}-{number:02}", row["problem"], row["answer"])


@contest_set(
    github="jianzhnie/LLMEval/66572ad3f66078c376d777866f6535d3f334b0c8/data/aime26.jsonl",
    blob="63b5d6786b889918e74b91287eada83b385dbf37",
    digest="20786756d63d9522a4237c4a6f4e90919d87725bd988568f7e95a8c068627173",
    count=30,
)
def aime26(rows: Rows) -> Iterator[Problem]:
    """AIME 2026, I and II, in the order of the contests by what the problems say. The repository is Apache-2.0.

    Not compared with another copy.
    """
    request = "\nPlease reason step by step, and put your final answer within \\boxed{}."
    for number, row in enumerate(rows):
        name = "I" if number < 15 else "II"
        yield Problem(f"aime2026-{name}-{number % 15 + 1:02}", row["prompt"].removesuffix(request), row["answer"])


@contest_set(
    github=f"{QWEN_MATH}/amc23/test.jsonl",
    blob="6894ad7c49a0b3a64210af32954f4d049d934ea0",
    digest="462d8693f51e36bd989e7a8c5c106d70a7315cb3bb853673a1d10bd5d8d621f5",
    count=40,
)
def amc23(rows: Rows) -> Iterator[Problem]:
    """AMC 12 of 2023, the 40 problems with integer answers; choices are left out and questions reworded.

    15 of them are in DAPO-Math-17k, nearly word for word. The file writes answers as decimals (27.0).
    """
    for row in rows:
        _, name, number = contest(row["url"])
        yield Problem(f"amc23-{name}-{number:02}", row["problem"], f"{row['answer']:.0f}")


@contest_set(
    github="agentica-project/rllm/874daa4acb7f451dc2a4b2b6e8ce28f5aa88d1f5/rllm/data/test/math/amc.json",
    blob="ac11f74f22c4b79e9bf4aca53c885fcd35413749",
    digest="8c64cfb8272540020d53c96c289c3334440b25f93691f18a2b68e999fdbfda84",
    count=83,
)
def amc12_83(rows: Rows) -> Iterator[Problem]:
    """AMC 12 of 2022 and 2023, the 83 problems of AI-MO/aimo-validation-amc, reworded as amc23. The repository is MIT.

    34 of them are in DAPO-Math-17k, nearly word for word.
    """
    for row in rows:
        year, name, number = contest(row["url"])
        yield Problem(f"amc12-{year}-{name}-{number:02}", row["problem"], f"{row['answer']:.0f}")


def _olympiad(row: Row) -> Row:
    names = ("olympiadbench-1782", "olympiadbench-1965", "olympiadbench-2045")
    error = float(row["error"]) if row["error"] is not None else None
    return {"list_answer": row["is_multiple_answer"], "absolute_tolerance": error, "text": row.get("id") in names}


@problem_set(
    github=f"{QWEN_MATH}/olympiadbench/test.jsonl",
    blob="ec36280b1de8f5bbee92da696c2ae84f5f6e6beb",
    digest="f594b97980d552c7193c49528befdfa6b4f902eeb685515d4f2518bb5ca742cc",
    count=675,
    compared=_olympiad,
)
def olympiadbench(rows: Rows) -> Iterator[Problem]:
    """OlympiadBench (arXiv 2402.14008), open-ended English mathematics without figures (OE_TO_maths_en_COMP).

    94 rows ask for several answers, all of which count as one; one allows an error of 0.1, and seven name a unit that
    the answer leaves out. 50 of them are in DAPO-Math-17k, nearly word for word; 6 of them are in MATH's training
    split.
    """
    for row in rows:
        answer = re.sub(r"^\$([^$]*)\$$", r"\1", row["final_answer"][0].strip())
        columns = {name: row[name] for name in ("is_multiple_answer", "error")}
        yield Problem(f"olympiadbench-{row['id']}", row["question"], answer, columns=columns)


# Gold answers that cannot be read as mathematics; 0013 is a sum with dots.
OMNI_TEXTS = [f"omni-rule-{i:04}" for i in (4, 13, 47, 70, 85, 341, 403, 849, 918, 1386, 1393)]


@problem_set(
    github="KbsdJames/omni-math-rule/4793415ef37d31c9cdb4e5b82dbe172f76f8cf08/omni_math_rule.jsonl",
    blob="a793db0d0076592c0d0538d9c1d644ad82b333ee",
    files=["omni_math_rule.jsonl", "omni_math.jsonl"],
    digest="70f07fe205298831a413a82bf9c4dd9cecbc8182290205724c1ea26074913886",
    count=2821,
    compared=lambda row: {"text": row.get("id") in OMNI_TEXTS},
)
def omni_math_rule(rows: Rows) -> Iterator[Problem]:
    r"""Omni-MATH-Rule, the 2,821 of Omni-MATH's 4,428 problems whose answers rules can grade; 13 repeat earlier ones.

    Where a lost backslash left a form feed in place of \frac, it is put back (17 rows); two rows hold other control
    characters. The repository has no licence for the data. 389 of them are in DAPO-Math-17k, nearly word for word, and
    59 of them are in MATH's training split.
    """
    for number, row in enumerate(rows):
        problem, answer = (row[name].replace("\x0crac", "\\frac") for name in ("problem", "answer"))
        yield Problem(f"omni-rule-{number:04}", problem, answer)


# ---- GSM8K, MATH, Minerva, DAPO -------------------------------------------------------------------------------------


@problem_set(
    github=f"{GSM8K}/test.jsonl",
    blob="e4c2ff4942b9a78bd74f04141224c11e28d12dc9",
    files=["gsm8k_test.jsonl"],
    digest="bc3e7ecbebc229e52971d4e3e3cb3a2b663851c99ec849910138ba40d2f02352",
    count=1319,
)
def gsm8k(rows: Rows) -> Iterator[Problem]:
    """GSM8K (arXiv 2110.14168), the test split. MIT."""
    for number, row in enumerate(rows):
        yield Problem(f"gsm8k-test-{number:05}", row["question"], after_hashes(row["answer"]))


@problem_set(
    github=f"{GSM8K}/train.jsonl",
    blob="7d97154b91aef28d01c3301741c81ce90039a4b1",
    digest="88cd366ce7d87239606a2c6531608af7e6db0f2e6b5bf3c48e986916e5b0c80c",
    count=7473,
    n=None,
)
def gsm8k_train(rows: Rows) -> Iterator[Problem]:
    """GSM8K (arXiv 2110.14168), the training split. MIT."""
    for number, row in enumerate(rows):
        yield Problem(f"gsm8k-train-{number:05}", row["question"], after_hashes(row["answer"]))


@problem_set(
    # The original at openai/prm800k is kept in Git LFS; this copy has the same bytes as a plain file.
    github="hkust-nlp/simpleRL-reason/cf1c7858bfc145a27aa733e75d930d34f0d318a6"
    "/examples/simplelr_math_eval/data/math500/test.jsonl",
    blob="2376b9a194b46c0790e197c91b7249e5f88ac09b",
    digest="41d43e5be8ef8481c9141ee91ca24fac2e0beafce8be9a9753da640d64036410",
    count=500,
)
def math500(rows: Rows) -> Iterator[Problem]:
    """MATH-500 (arXiv 2305.20050), a sample of the 5,000 test problems of MATH. MIT.

    22 of them are in DAPO-Math-17k, nearly word for word; 54 of them are in MATH's training split.
    """
    for row in rows:
        identity = row["unique_id"].removesuffix(".json").replace("/", "-")
        yield Problem(f"math500-{identity}", row["problem"], row["answer"])


@problem_set(
    github="TianHongZXY/rl-reasoning/c90ce5c4ba10fd948d64ee956d3b561f883de166/data/math/train.parquet",
    blob="4513906e69a1844b2f62ceff1d44991f58f92f2e",
    digest="bd66a7b88d7fa454057afbbb10ca9858ba6e5ec38becabd24ae4cf7d82a9e635",
    count=7498,
    n=None,
    compared=lambda row: {"text": row.get("id") in ("math-train-01556", "math-train-06148", "math-train-06786")},
)
def math_train(rows: Rows) -> Iterator[Problem]:
    """MATH (arXiv 2103.03874), the training split. MIT; the copy's repository is Apache-2.0.

    7,500 rows, of which two have an empty box for an answer and are left out.
    """
    request = "Let's think step by step and output the final answer within \\boxed{}."
    for number, row in enumerate(rows):
        problem = row["prompt"][0]["content"].removesuffix(request)
        if answer := last_boxed(row["reward_model"]["ground_truth"]["solution"]):
            yield Problem(f"math-train-{number:05}", problem, answer)


MINERVA_TEXTS = ("minerva-005", "minerva-027", "minerva-261", "minerva-268", "minerva-269")


@problem_set(
    github=f"{QWEN_MATH}/minerva_math/test.jsonl",
    blob="123c5cd351cac2b8ead5413bc084629d7ff651de",
    digest="eff6e542ac6a9de958d517c220c89d77c1ad894360069868472c1204c66731c7",
    count=272,
    # The tolerance is that of public versions of the original grader; stricter harnesses score lower.
    compared=lambda row: {"relative_tolerance": 0.01, "text": row.get("id") in MINERVA_TEXTS},
)
def minerva(rows: Rows) -> Iterator[Problem]:
    """Minerva's quantities of undergraduate science (OCWCourses, arXiv 2206.14858), from MIT OpenCourseWare."""
    for number, row in enumerate(rows):
        yield Problem(f"minerva-{number:03}", row["problem"], last_boxed(row["solution"]))


@problem_set(
    github="MasterVito/SvS/9fd8f35375b31b8632b52e715296c264a3ad4176/data/dapo_math_17k.parquet",
    blob="cc1f4f3f76e565f518ca825d58f6f9dc6a36dd6d",
    digest="d293c064bddf64786ad39be31229b930cd1fbfd763d481c3a506d8de99a754a9",
    count=16591,
    n=None,
)
def dapo_math_17k(rows: Rows) -> Iterator[Problem]:
    """DAPO-Math-17k (arXiv 2503.14476): 13,524 English and 3,067 Chinese problems with integer answers.

    The file has 17,917 rows. Of the copies of a problem the first one counts, and none if their answers differ (20
    problems). 637 problems hold control characters where LaTeX lost a backslash; they are left as published. The copy's
    repository is Apache-2.0; the licence of BytedTsinghua-SIA/DAPO-Math-17k was not checked.
    """
    copies: dict[str, list[Problem]] = defaultdict(list)
    for number, row in enumerate(rows):
        problem = row["prompt"][0]["content"]
        # Without the marks of formulas, the sizes of brackets and fractions, and spaces.
        text = re.sub(r"\s|\$|\\[()\[\],;! ]|\\left|\\right", "", re.sub(r"\\[dt]frac", r"\\frac", problem))
        copies[text].append(Problem(f"dapo-{number:05}", problem, row["reward_model"]["ground_truth"]))
    for same in copies.values():
        if len({copy.answer for copy in same}) == 1:
            yield same[0]
