"""Evaluations that nobody ran, whose numbers are known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

RIGHT, WRONG, UNREAD = "correct", "incorrect", "unparsable"


def sample_text(benchmark: str, problem: int, sample: int, outcome: str) -> str:
    return f"{benchmark} {problem} take {sample}, {outcome}"


def make_run(
    folder: Path,
    outcomes: dict[str, list[list[str]]],
    text: Callable[[str, int, int, str], str] = sample_text,
    protocol: dict[str, Any] | None = None,
) -> Path:
    """Write the evaluation of a run: the first response of each problem is truncated, all have 10 tokens.

    ``outcomes`` has, for each benchmark, the outcomes of the responses to each problem.
    """
    records = []
    (folder / "evaluation").mkdir(parents=True)
    for name, groups in outcomes.items():
        n = len(groups[0])
        flat = [outcome for group in groups for outcome in group]
        rows = [
            {
                "id": f"{name}-{p}",
                "sample": i,
                "outcome": outcome,
                "gold": str(10 * p),
                "problem": f"{name} what is {p}",
            }
            | {"response": text(name, p, i, outcome), "tokens": 10, "finished": i > 0}
            for p, group in enumerate(groups)
            for i, outcome in enumerate(group)
        ]
        right = [sum(o == RIGHT for o in group) for group in groups]
        record = {"benchmark": name, "engine": "vllm", "n": n, "problems": len(groups), "tokens": 10 * len(flat)}
        record |= {"accuracy": sum(right) / len(flat), "per_problem": [c / n for c in right], "majority": 0.25}
        record |= {"pass_at": {"1": sum(right) / len(flat), "2": sum(c > 0 for c in right) / len(right)}}
        record |= {"outcomes": {kind: flat.count(kind) for kind in set(flat)}, "truncated": 1 / n}
        records.append(record)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "evaluation" / f"{name}.jsonl").write_text(lines)
    sampling = {"n": 2, "temperature": 1.0, "top_p": 1.0, "max_tokens": 24}
    whole = {"model": folder.name, "prompt": "p", "grader": "numeric-1", "engine": "vllm", "seed": 7} | (protocol or {})
    whole["benchmarks"] = {name: {"sampling": sampling, "problems": f"digest-{name}"} for name in outcomes}
    facts = {"seconds": 1.5, "hardware": "a machine", "versions": {"python": "3.11.7", "torch": "2.13.0"}}
    file = {"key": f"key-{folder}", "protocol": whole, "facts": facts, "records": records}
    (folder / "evaluation" / "records.json").write_text(json.dumps(file))
    return folder
