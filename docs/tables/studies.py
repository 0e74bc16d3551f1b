"""Tables and sentences from the records of published studies."""

from __future__ import annotations

import statistics

from .common import ROOT, block, read, table


@block("ranges")
def ranges() -> str:
    """Every candidate clip range with its area under the learning curve, and which was chosen."""
    found = read("ranges", "docs")
    rows = []
    for ratio, candidates in found["candidates"].items():
        for one in candidates:
            chosen = found["chosen"][ratio] == {key: one[key] for key in ("low", "high")}
            means = [f"{statistics.mean(seeds.values()):.1f}" for seeds in one["areas"].values()]
            ends = f"{one['low']:g} / {one['high']:g}"
            rows.append([ratio, ends, *means, f"**{one['mean']:.1f}**" if chosen else f"{one['mean']:.1f}"])
    header = ["ratio", "clip range", *next(iter(found["candidates"].values()))[0]["areas"], "mean"]
    return table(header, rows) + f"\n\nPoints, mean over seeds {', '.join(map(str, found['seeds']))}; chosen in bold."


@block("power")
def power() -> str:
    """Seeds and hours of a verdict at full size, with the spread of the study of an hour."""
    return (ROOT / "docs/power.txt").read_text().strip()


@block("plan-papers")
def plan_papers() -> str:
    """The plans of the papers' settings."""
    return (ROOT / "docs/plan_papers.txt").read_text().strip()


@block("plan-grain")
def plan_grain() -> str:
    """The plan of the study of the grain at full size."""
    return (ROOT / "docs/plan_grain.txt").read_text().strip()


@block("cases")
def cases() -> str:
    """Every estimator without a clip in each exact case, and what the clip changes."""
    record = read("cases", "docs")
    baseline = record["baseline"]
    header = ["ratio", "push on x1", "cosine", "bias", "cosine of a batch", f"reward − {baseline}", "cosine with clip"]
    parts = []
    for case in record["cases"]:
        clipped = {e["name"]: e for e in case["estimators"] if e["clip"]}
        rows = [
            [
                e["name"],
                f"{e['push']:+.3f}",
                f"{e['cosine']:.2f}",
                f"{e['bias']:.2f}",
                f"{e['batch_cosine'][0]:.2f}",
                reward(e["difference"]),
                f"{clipped[e['name']]['cosine']:.2f}",
            ]
            for e in case["estimators"]
            if not e["clip"]
        ]
        title = f"**{case['title']}** (exact push on x1 {case['exact_push']:+.3f}). {case['prediction']}"
        parts += [title, table(header, rows)]
    return "\n\n".join([*parts, f"{record['seeds']} seeds, batches of {record['batch']} responses."])


@block("case-doses")
def case_doses() -> str:
    """Difference to the token ratio by what is varied in each exact case."""
    record = read("cases", "docs")
    names = {
        "first": "tokens before the decision",
        "updates_per_batch": "updates per batch",
        "drift": "drift",
        "mismatch": "noise σ",
    }
    parts = []
    for case in record["cases"]:
        found = [e for e in case["estimators"] if not e["clip"] and e["name"] != record["baseline"]]
        rows = [[e["name"], *(reward(dose) for dose in e["doses"])] for e in found]
        header = [f"{names[case['dose']]}:", *(f"{dose:g}" for dose in case["doses"])]
        parts += [f"**{case['title']}**", table(header, rows)]
    return "\n\n".join(parts)


def reward(interval: list[float]) -> str:
    """A difference of expected rewards with half of its interval; exactly 0 where nothing differs."""
    mean, low, high = interval
    shown = f"{mean:+.4f}" if abs(mean) >= 5e-5 else "0.0000"
    return "0" if mean == low == high == 0 else f"{shown} ± {(high - low) / 2:.4f}"
