"""Where a study's numbers come from and what they cost, gathered from its records."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from ..figures.records import Records
from ..files import read_json


def _summaries(records: Records) -> list[dict[str, Any]]:
    paths = (records.results / run.folder / "summary.json" for run in records.matrix.runs)
    return [read_json(path) for path in paths if path.exists()]


def _evaluations(records: Records) -> list[dict[str, Any]]:
    paths = (records.results / run.folder / "evaluation" / "records.json" for run in records.matrix.evaluated)
    return [read_json(path) for path in paths if path.exists()]


def provenance(records: Records) -> dict[str, str]:
    """Commits, versions and hardware of the runs, each value once."""
    summaries = _summaries(records)

    def each(values: list[str]) -> str:
        return ", ".join(dict.fromkeys(v for v in values if v)) or "unknown"

    versions = {name: [s["versions"].get(name, "") for s in summaries] for name in ("python", "torch", "transformers")}
    vllm = [v for e in _evaluations(records) for k, v in e["facts"]["versions"].items() if k.startswith("vllm")]
    return {
        "commit": each([s["commit"] for s in summaries]),
        "hardware": each([s["hardware"] for s in summaries]),
        **{name: each(values) for name, values in versions.items()},
        "vllm": each(vllm),
        "start models": each([f"{s['start']['model']} {s['start']['digest']}" for s in summaries]),
    }


def cost(records: Records) -> dict[str, str]:
    """What training and evaluation took: seconds of their processes, device hours, generated tokens."""
    summaries, evaluations = _summaries(records), _evaluations(records)
    finals = [s["final"] for s in summaries]
    trained = sum(f["seconds"] for f in finals)
    judged = [sum(e["facts"].get("seconds", {}).values()) for e in evaluations]
    hours: Counter[str] = Counter()
    for hardware, seconds in [
        *((s["hardware"], f["seconds"]) for s, f in zip(summaries, finals, strict=True)),
        *((e["facts"]["hardware"], seconds) for e, seconds in zip(evaluations, judged, strict=True)),
    ]:
        count, device = devices(hardware)
        hours[f"{device}-hours"] += count * seconds / 3600
    tokens = sum(r["tokens"] for e in evaluations for r in e["records"])
    return {
        "training": f"{trained:,.0f} s in {len(finals)} runs, "
        f"{sum(f['tokens'] for f in finals):,} generated tokens, {sum(f['updates'] for f in finals):,} optimizer steps",
        "evaluation": f"{sum(judged):,.0f} s for {len(evaluations)} models, {tokens:,} generated tokens",
        "in all": ", ".join(f"{n:,.2f} {device}" for device, n in sorted(hours.items())) or "nothing yet",
    }


def devices(hardware: str) -> tuple[int, str]:
    """How many devices a process held, by what `provenance.hardware` says: (8, "GPU"), or (1, "core") without any."""
    count = re.match(r"(\d+) × ", hardware)
    return (int(count[1]), "GPU") if count else (1, "core")


def protocol(records: Records) -> dict[str, str]:
    """How final models were judged."""
    evaluations = _evaluations(records)
    if not evaluations:
        return {}
    said = evaluations[0]["protocol"]
    ways: dict[str, list[str]] = {}
    for name, benchmark in said["benchmarks"].items():
        s = benchmark["sampling"]
        how = "greedy" if s["temperature"] == 0 else f"{s['n']} samples at temperature {s['temperature']:g}"
        ways.setdefault(f"{how}, at most {s['max_tokens']} tokens", []).append(name.replace("_", " "))
    sizes = {r["benchmark"]: r["problems"] for r in evaluations[0]["records"]}
    return {
        "sampling": "; ".join(f"{how}: {', '.join(names)}" for how, names in ways.items()),
        "problems": ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in sizes.items()),
        "engine": said["engine"],
        "grader": said["grader"],
        "prompt": said["prompt"],
        "seed": str(said["seed"]),
    }


def tracked(results: Path) -> dict[str, Any]:
    """Where MLflow has the study, as `policygrain track` has left it: uri and the address of each arm's parent run.

    A store that is a file has no address; its runs are then where `make ui` shows them. Empty without MLflow.
    """
    path = results / "mlflow.json"
    if not path.exists():
        return {}
    said = read_json(path)
    uri = said["uri"].rstrip("/") if said["uri"].startswith("http") else "http://127.0.0.1:5000"
    runs = {arm: f"{uri}/#/experiments/{said['experiment']}/runs/{run}" for arm, run in said["runs"].items()}
    return {"uri": said["uri"], "runs": runs}
