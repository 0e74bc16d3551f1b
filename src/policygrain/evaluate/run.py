"""Judging final models on a study's benchmarks, all of them in one engine."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import atomic_json, atomic_text, read_json
from ..model.loading import load_model
from ..progress import Progress
from ..provenance import file_digest, hardware, model_digest, seed_of, versions
from ..rollout.engine import Engine, Request
from ..rollout.open import open_engine, resolve_engine
from ..study.schema import Benchmark, Study
from ..tasks.problem import Problem, read_problems
from ..tasks.prompts import PromptRenderer
from ..verify import NumericVerifier
from ..verify.verdict import boxed
from .scores import majority, pass_at_k, powers_of_two


def evaluate(study: Study, models: Mapping[str, Path], data: Path, out: Path) -> None:
    """Judge ``models`` (name → folder) and write one record per model and benchmark to ``out`` (JSON Lines).

    Beside each model folder, `evaluation/` keeps every sampled text with its verdict, and the records; a model whose
    weights and protocol are those of its records is not sampled again.
    """
    names = [b.name for b in study.evaluation.benchmarks]
    problems = {name: read_problems(data / "benchmarks" / f"{name}.jsonl") for name in names}
    engine: Engine | None = None
    architecture = None
    lines = []
    for name, folder in Progress(models.items(), "models judged", len(models)):
        if not (folder / "config.json").exists():
            raise UserError(f"{folder}: no model here; train it first ({name}).")
        model, tokenizer = load_model(str(folder))
        response = max((b.sampling or study.evaluation.sampling).max_tokens for b in study.evaluation.benchmarks)
        renderer = PromptRenderer(tokenizer, study.prompt, model.config.max_position_embeddings - response)
        protocol = _protocol(study, renderer, data, model_digest(folder))
        store = folder.parent / "evaluation"
        key = hashlib.sha256(json.dumps(protocol, sort_keys=True).encode()).hexdigest()[:16]
        cached = read_json(store / "records.json") if (store / "records.json").exists() else {}
        if cached.get("key") != key:
            config = json.loads((folder / "config.json").read_text())
            if engine is None or architecture != config:
                engine, architecture = open_engine(study.evaluation.engine, str(folder), model, tokenizer), config
            engine.load_weights(model)
            started = time.perf_counter()
            records = _judge(study, problems, engine, renderer, store)
            facts = {"seconds": time.perf_counter() - started, "hardware": hardware(), "versions": versions()}
            cached = {"key": key, "protocol": protocol, "facts": facts, "records": records}
            atomic_json(store / "records.json", cached)
        shared = {"model": name, "protocol_key": _comparable(protocol), "key": key}
        lines += [json.dumps({**shared, **record}, ensure_ascii=False) for record in cached["records"]]
    atomic_text(out, "".join(line + "\n" for line in lines))


def _protocol(study: Study, renderer: PromptRenderer, data: Path, digest: str) -> dict[str, Any]:
    """Everything that could change a score."""
    return {
        "model": digest,
        "prompt": renderer.digest,
        "verifier": NumericVerifier.name,
        "engine": resolve_engine(study.evaluation.engine),
        "seed": study.evaluation.seed,
        "benchmarks": {
            b.name: {"sampling": _sampling(study, b), "problems": file_digest(data / "benchmarks" / f"{b.name}.jsonl")}
            for b in study.evaluation.benchmarks
        },
    }


def _comparable(protocol: dict[str, Any]) -> str:
    """Records with the same value may stand in one table: all but the model is equal."""
    rest = {k: v for k, v in protocol.items() if k != "model"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


def _sampling(study: Study, benchmark: Benchmark) -> dict[str, Any]:
    return (benchmark.sampling or study.evaluation.sampling).model_dump()


def _judge(
    study: Study, problems: Mapping[str, list[Problem]], engine: Engine, renderer: PromptRenderer, store: Path
) -> list[dict[str, Any]]:
    """Sample all benchmarks at once, verify, keep samples, return one record per benchmark."""
    requests: list[Request] = []
    asked: list[tuple[Benchmark, Problem, int]] = []
    for benchmark in study.evaluation.benchmarks:
        sampling = benchmark.sampling or study.evaluation.sampling
        for problem in problems[benchmark.name]:
            prompt = renderer.ids(problem.problem)
            for i in range(sampling.n):
                seed = seed_of(study.evaluation.seed, benchmark.name, problem.id, i)
                requests.append(Request(prompt, seed, sampling.max_tokens, sampling.temperature, sampling.top_p))
                asked.append((benchmark, problem, i))
    responses = engine.generate(requests)
    texts = renderer.tokenizer.batch_decode([r.ids for r in responses], skip_special_tokens=True)
    outcomes = NumericVerifier().verify([problem.answer for _, problem, _ in asked], texts)
    samples: dict[str, list[dict[str, Any]]] = {b.name: [] for b in study.evaluation.benchmarks}
    for (benchmark, problem, i), response, text, outcome in zip(asked, responses, texts, outcomes, strict=True):
        samples[benchmark.name].append(
            {"id": problem.id, "sample": i, "outcome": outcome, "gold": problem.answer, "problem": problem.problem}
            | {"response": text, "tokens": len(response.ids), "finished": response.finished}
        )
    for name, rows in samples.items():
        atomic_text(store / f"{name}.jsonl", "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows))
    return [_record(engine.name, name, rows) for name, rows in samples.items()]


def _record(engine: str, benchmark: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One benchmark's record: score per problem, in the order of the file, and what sums it up."""
    by_problem: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_problem.setdefault(row["id"], []).append(row)
    right = [sum(r["outcome"] == "correct" for r in group) for group in by_problem.values()]
    n = len(rows) // len(by_problem)
    votes = [
        majority([boxed(r["response"]) for r in group], [r["outcome"] == "correct" for r in group])
        for group in by_problem.values()
    ]
    return {
        "benchmark": benchmark,
        "engine": engine,
        "n": n,
        "problems": len(by_problem),
        "accuracy": sum(right) / len(rows),
        "per_problem": [c / n for c in right],
        "pass_at": {k: sum(pass_at_k(n, c, k) for c in right) / len(right) for k in powers_of_two(n)},
        "majority": sum(votes) / len(votes),
        "outcomes": dict(Counter(r["outcome"] for r in rows)),
        "tokens": sum(r["tokens"] for r in rows),
        "truncated": sum(not r["finished"] for r in rows) / len(rows),
    }
