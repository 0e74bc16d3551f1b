"""Made-up evaluations with samples, whose numbers are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from policygrain.paths import RunFolder
from policygrain.records import BenchmarkRecord, EvaluatedSample, EvaluationFacts, ModelEvaluation, write_record

RIGHT, WRONG, UNREAD = "correct", "incorrect", "unparsable"
# Three problems with two responses each: right on 2, 1 and 0 of them. 3 of 6 right, pass@2 = 2 / 3.
COUNT = [[RIGHT, RIGHT], [RIGHT, WRONG], [UNREAD, WRONG]]
# One problem, another kind of outcome for each response.
REST = [["timeout", "error"]]


def sample_text(benchmark: str, problem: int, sample: int, outcome: str) -> str:
    return f"{benchmark} {problem} take {sample}, {outcome}"


def make_run(
    folder: Path,
    outcomes: dict[str, list[list[str]]],
    text: Callable[[str, int, int, str], str] = sample_text,
    protocol: dict[str, Any] | None = None,
    prompt: tuple[str, str] | None = None,
) -> Path:
    """Write the evaluation of a run: the first response to each problem is truncated, all have 10 tokens.

    ``outcomes`` has, for each benchmark, the outcomes of the responses to each problem.
    """
    there, records = RunFolder(folder).evaluation, []
    there.path.mkdir(parents=True)
    for name, groups in outcomes.items():
        n = len(groups[0])
        flat = [outcome for group in groups for outcome in group]
        rows = [
            EvaluatedSample(
                id=f"{name}-{p}",
                sample=i,
                outcome=outcome,
                gold=str(10 * p),
                problem=f"{name} what is {p}",
                response=text(name, p, i, outcome),
                tokens=10,
                finished=i > 0,
            )
            for p, group in enumerate(groups)
            for i, outcome in enumerate(group)
        ]
        right = [sum(o == RIGHT for o in group) for group in groups]
        record = BenchmarkRecord(
            benchmark=name,
            n=n,
            problems=len(groups),
            accuracy=sum(right) / len(flat),
            per_problem=[c / n for c in right],
            contaminated=[],
            pass_at={1: sum(right) / len(flat), 2: sum(c > 0 for c in right) / len(right)},
            majority=0.25,
            outcomes={kind: flat.count(kind) for kind in set(flat)},
            tokens=10 * len(flat),
            truncated=1 / n,
        )
        records.append(record)
        there.samples(name).write_text("".join(row.model_dump_json() + "\n" for row in rows))
    sampling = {"n": 2, "temperature": 1.0, "top_p": 1.0, "max_tokens": 24}
    whole = {"model": folder.name, "prompt": "p", "grader": "numeric-1", "engine": "vllm", "seed": 7} | (protocol or {})
    whole["benchmarks"] = {name: {"sampling": sampling, "problems": f"digest-{name}"} for name in outcomes}
    versions = {"python": "3.11.7", "torch": "2.13.0"}
    facts = EvaluationFacts(seconds={"engine": 1.5}, hardware="a machine", versions=versions)
    model = "/".join(folder.parts[-2:])
    write_record(
        there.record,
        ModelEvaluation(model=model, key=f"key-{folder}", protocol=whole, prompt=prompt, facts=facts, records=records),
    )
    return folder
