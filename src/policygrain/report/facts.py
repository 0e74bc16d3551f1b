"""Provenance, cost and protocol of a study, for the report."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..results.layout import START
from ..results.reader import StudyResults
from ..results.schema import ModelEvaluation


def _evaluations(results: StudyResults) -> list[ModelEvaluation]:
    """The evaluations of runs, without those of start models."""
    return [e for name, e in results.model_evaluations.items() if not name.startswith(f"{START}/")]


def provenance(results: StudyResults) -> dict[str, str]:
    """Commits, versions and hardware of the runs, each value once."""
    summaries = list(results.summaries.values())

    def each(values: list[str]) -> str:
        return ", ".join(dict.fromkeys(v for v in values if v)) or "unknown"

    names = ("python", "torch", "transformers")
    versions = {name: [s.environment.versions.get(name, "") for s in summaries] for name in names}
    vllm = [v for e in _evaluations(results) for k, v in e.facts.versions.items() if k.startswith("vllm")]
    return {
        "commit": each([s.environment.commit for s in summaries]),
        "hardware": each([s.environment.hardware for s in summaries]),
        **{name: each(values) for name, values in versions.items()},
        "vllm": each(vllm),
        # A folder by its name: where it was on the machine that trained means nothing elsewhere.
        "start models": each([f"{Path(results.study.model.start).name} {s.inputs.start_model}" for s in summaries]),
    }


def cost(results: StudyResults) -> dict[str, str]:
    """The cost of training and evaluation: seconds of their processes, device hours, generated tokens."""
    summaries, evaluations = list(results.summaries.values()), _evaluations(results)
    finals = [s.final for s in summaries]
    trained = sum(f.seconds for f in finals)
    evaluated = [sum(e.facts.seconds.values()) for e in evaluations]
    hours: defaultdict[str, float] = defaultdict(float)
    for hardware, seconds in [
        *((s.environment.hardware, s.final.seconds) for s in summaries),
        *((e.facts.hardware, seconds) for e, seconds in zip(evaluations, evaluated, strict=True)),
    ]:
        count, device = devices(hardware)
        hours[f"{device}-hours"] += count * seconds / 3600
    tokens = sum(r.tokens for e in evaluations for r in e.records)
    return {
        "training": f"{trained:,.0f} s in {len(finals)} runs, "
        f"{sum(f.tokens for f in finals):,} generated tokens, {sum(f.updates for f in finals):,} optimizer steps",
        "evaluation": f"{sum(evaluated):,.0f} s for {len(evaluations)} models, {tokens:,} generated tokens",
        "in all": ", ".join(f"{n:,.2f} {device}" for device, n in sorted(hours.items())) or "none yet",
    }


def devices(hardware: str) -> tuple[int, str]:
    """Number and kind of a process's devices, from `provenance.hardware`: (8, "GPU"), or (1, "core") without GPUs."""
    count = re.match(r"(\d+) × ", hardware)
    return (int(count[1]), "GPU") if count else (1, "core")


def protocol(results: StudyResults) -> dict[str, str]:
    """The evaluation protocol of the final models."""
    evaluations = _evaluations(results)
    if not evaluations:
        return {}
    first = evaluations[0].protocol
    by_sampling: dict[str, list[str]] = {}
    for name, benchmark in first["benchmarks"].items():
        s = benchmark["sampling"]
        how = "greedy" if s["temperature"] == 0 else f"{s['n']} samples at temperature {s['temperature']:g}"
        by_sampling.setdefault(f"{how}, at most {s['max_tokens']} tokens", []).append(name.replace("_", " "))
    return {
        "sampling": "; ".join(f"{how}: {', '.join(names)}" for how, names in by_sampling.items()),
        "problems": ", ".join(f"{r.benchmark.replace('_', ' ')} {r.problems}" for r in evaluations[0].records),
        "engine": first["engine"],
        "grader": first["grader"],
        "prompt": first["prompt"],
        "seed": str(first["seed"]),
    }


def tracked(results: StudyResults) -> dict[str, Any]:
    """The address of the study's MLflow server, and that of the run of each arm.

    Empty if it was not tracked, or in a file or by a server of this machine, which readers elsewhere cannot open.
    """
    found = results.tracking
    if found is None or urlsplit(found.uri).scheme not in ("http", "https") or is_local(found.uri):
        return {}
    address = found.uri.rstrip("/")
    runs = {arm: f"{address}/#/experiments/{found.experiment}/runs/{run}" for arm, run in found.runs.items()}
    return {"uri": found.uri, "runs": runs}


def is_local(address: str) -> bool:
    """Whether a web address is one of the machine that reads it."""
    host = urlsplit(address).hostname or ""
    return host in ("localhost", "::1", "0.0.0.0") or host.startswith("127.")
