"""Drawing the responses of an evaluation: nothing twice, in as many parts as there are processes for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError
from ..provenance import seed_of
from ..rollout.engine import Engine, Request, Response
from ..study.schema import Benchmark, Study
from ..tasks.problem import Problem
from ..tasks.prompts import PromptRenderer
from ..tasks.registry import sampling_of

CHUNK = 4096  # responses that are on disk together: what a crash costs at most


class Asked(NamedTuple):
    """One response that an evaluation wants."""

    benchmark: Benchmark
    problem: Problem
    sample: int
    request: Request


def ask(study: Study, problems: Mapping[str, list[Problem]], renderer: PromptRenderer) -> list[Asked]:
    """Everything that the protocol asks of a model, in the order of its records."""
    asked = []
    for benchmark in study.evaluation.benchmarks:
        sampling = sampling_of(study, benchmark)
        for problem in problems[benchmark.name]:
            prompt = renderer.ids(problem.problem)
            for i in range(sampling.n):
                seed = seed_of(study.evaluation.seed, benchmark.name, problem.id, i)
                request = Request(
                    prompt, seed, sampling.max_tokens, sampling.temperature, sampling.top_p, log_probs=False
                )
                asked.append(Asked(benchmark, problem, i, request))
    return asked


def sample(
    asked: Sequence[Asked], engine: Callable[[], Engine], store: Path, key: str, part: tuple[int, int] = (0, 1)
) -> None:
    """Draw what ``store`` does not have yet of ``part`` (i of n), a chunk at a time; ``engine`` is opened if needed.

    Each process writes a file of its own, so parts may be drawn side by side.
    """
    number, parts = part
    have = sampled(store, key)
    todo = [i for i in range(number, len(asked), parts) if i not in have]
    # Longest first: what is left at the end, when few sequences share the engine, is short.
    todo.sort(key=lambda i: (asked[i].request.max_tokens, len(asked[i].request.prompt_ids)), reverse=True)
    path = store / f"sampled-{key}-{number}of{parts}.jsonl"
    store.mkdir(parents=True, exist_ok=True)
    # A line that a crash cut short must not swallow the next one.
    torn = path.exists() and not path.read_bytes().endswith(b"\n")
    for start in range(0, len(todo), CHUNK):
        chunk = todo[start : start + CHUNK]
        responses = engine().generate([asked[i].request for i in chunk])
        rows = ({"i": i, "ids": r.ids, "finished": r.finished} for i, r in zip(chunk, responses, strict=True))
        try:
            with path.open("a") as file:
                file.write("\n" * torn + "".join(json.dumps(row) + "\n" for row in rows))
            torn = False
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}. What was sampled before is kept.") from error


def sampled(store: Path, key: str) -> dict[int, Response]:
    """What was drawn under this key, by its place; a last line that was cut short is drawn again."""
    found = {}
    for path in sorted(store.glob(f"sampled-{key}-*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            found[row["i"]] = Response(row["ids"], row["finished"], [])
    return found


def complete(asked: Sequence[Asked], store: Path, key: str) -> list[Response]:
    """All responses, in order. UserError that says which parts are missing."""
    found = sampled(store, key)
    if missing := [i for i in range(len(asked)) if i not in found]:
        kinds = ", ".join(sorted({asked[i].benchmark.name for i in missing}))
        there = ", ".join(sorted(p.name for p in store.glob(f"sampled-{key}-*.jsonl"))) or "none"
        raise UserError(
            f"{store}: {len(missing)} of {len(asked)} responses are missing ({kinds}); parts that are "
            f"there: {there}. Run the missing ones, or the same command without --part."
        )
    return [found[i] for i in range(len(asked))]


def forget(store: Path) -> None:
    """Remove drawn responses, once they are kept with their verdicts."""
    for path in store.glob("sampled-*.jsonl"):
        path.unlink()
