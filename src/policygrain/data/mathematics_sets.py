"""GSM8K and MATH, of which papers use many parts, Minerva, and DAPO-Math-17k."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from ..grading.extraction import all_boxes
from .problem import Problem
from .problem_set import Rows, problem_set

GSM8K = "openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data"


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


@problem_set(
    github=f"{GSM8K}/test.jsonl",
    blob="e4c2ff4942b9a78bd74f04141224c11e28d12dc9",
    files=["gsm8k_test.jsonl"],
    digest="bc3e7ecbebc229e52971d4e3e3cb3a2b663851c99ec849910138ba40d2f02352",
    count=1319,
    n=1,
)
def gsm8k(rows: Rows) -> Iterator[Problem]:
    """GSM8K (arXiv 2110.14168), the test split. MIT. Differences near the ceiling say little."""
    for number, row in enumerate(rows):
        yield Problem(f"gsm8k-test-{number:05}", row["question"], after_hashes(row["answer"]))


@problem_set(
    github=f"{GSM8K}/train.jsonl",
    blob="7d97154b91aef28d01c3301741c81ce90039a4b1",
    digest="88cd366ce7d87239606a2c6531608af7e6db0f2e6b5bf3c48e986916e5b0c80c",
    count=7473,
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
    n=1,
)
def math500(rows: Rows) -> Iterator[Problem]:
    """MATH-500 (arXiv 2305.20050), a sample of the 5,000 test problems of MATH. MIT.

    22 of them are in DAPO-Math-17k, nearly word for word; 54 of them are in MATH's training split, most as another
    problem of the same template.
    """
    for row in rows:
        identity = row["unique_id"].removesuffix(".json").replace("/", "-")
        columns = {name: row[name] for name in ("level", "subject")}
        yield Problem(f"math500-{identity}", row["problem"], row["answer"], columns=columns)


SUBJECTS = "algebra counting_and_probability geometry intermediate_algebra number_theory prealgebra precalculus"


@problem_set(
    # A revision that many public evaluations pin. Its content has not been seen: columns and file names are as public
    # code has them.
    hub="EleutherAI/hendrycks_math/21a5633873b6a120296cce3e2df9d5550074f4a3",
    hub_files=[f"{subject}/test-00000-of-00001.parquet" for subject in SUBJECTS.split()],
    files=["math_test.jsonl"],
    digest=None,
    count=5000,
    n=1,
)
def math(rows: Rows) -> Iterator[Problem]:
    """MATH (arXiv 2103.03874), the test split. MIT.

    Contains MATH-500, which most papers report. Some circulating training sets were cut from this split.
    """
    for number, row in enumerate(rows):
        columns = {name: row[name] for name in ("level", "type")}
        yield Problem(f"math-test-{number:05}", row["problem"], last_boxed(row["solution"]), columns=columns)


@problem_set(
    github="TianHongZXY/rl-reasoning/c90ce5c4ba10fd948d64ee956d3b561f883de166/data/math/train.parquet",
    blob="4513906e69a1844b2f62ceff1d44991f58f92f2e",
    digest="bd66a7b88d7fa454057afbbb10ca9858ba6e5ec38becabd24ae4cf7d82a9e635",
    count=7498,
    text=("math-train-01556", "math-train-06148", "math-train-06786"),
)
def math_train(rows: Rows) -> Iterator[Problem]:
    """MATH (arXiv 2103.03874), the training split. MIT; the copy's repository is Apache-2.0.

    7,500 rows, of which two have an empty box for an answer and are left out. Problems of math500, omni_math_rule and
    olympiadbench are in it, nearly word for word or from the same template.
    """
    request = "Let's think step by step and output the final answer within \\boxed{}."
    for number, row in enumerate(rows):
        problem = row["prompt"][0]["content"].removesuffix(request)
        if answer := last_boxed(row["reward_model"]["ground_truth"]["solution"]):
            yield Problem(f"math-train-{number:05}", problem, answer)


@problem_set(
    github="QwenLM/Qwen2.5-Math/a45202bd16f1ec06f433442dc1152d0074773465/evaluation/data/minerva_math/test.jsonl",
    blob="123c5cd351cac2b8ead5413bc084629d7ff651de",
    digest="eff6e542ac6a9de958d517c220c89d77c1ad894360069868472c1204c66731c7",
    count=272,
    n=1,
    relative_tolerance=0.01,  # as in public versions of the original grader; stricter harnesses score lower
    text=("minerva-005", "minerva-027", "minerva-261", "minerva-268", "minerva-269"),
)
def minerva(rows: Rows) -> Iterator[Problem]:
    """Minerva's quantities of undergraduate science (OCWCourses, arXiv 2206.14858), from MIT OpenCourseWare.

    Another public copy (DeepScaleR's) writes 131 of the 272 answers otherwise, with units, in other notation, and at
    least once with another value; scores with the two copies are not comparable. The copy's folder is MIT.
    """
    for number, row in enumerate(rows):
        yield Problem(f"minerva-{number:03}", row["problem"], last_boxed(row["solution"]))


@problem_set(
    github="MasterVito/SvS/9fd8f35375b31b8632b52e715296c264a3ad4176/data/dapo_math_17k.parquet",
    blob="cc1f4f3f76e565f518ca825d58f6f9dc6a36dd6d",
    digest="d293c064bddf64786ad39be31229b930cd1fbfd763d481c3a506d8de99a754a9",
    count=16591,
)
def dapo_math_17k(rows: Rows) -> Iterator[Problem]:
    """DAPO-Math-17k (arXiv 2503.14476): 13,524 English and 3,067 Chinese problems with integer answers.

    The file has 17,917 rows. Of the copies of a problem the first one counts, and none if their answers differ (20
    problems). 637 problems hold control characters where LaTeX lost a backslash; they are left as published. Many
    problems of amc23, amc12_83, math500, omni_math_rule and olympiadbench are in it; none of AIME 2024 and 2025. The
    copy's repository is Apache-2.0; the licence of BytedTsinghua-SIA/DAPO-Math-17k was not checked.
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
