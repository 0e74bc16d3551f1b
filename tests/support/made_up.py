"""Records of a study that nobody trained, whose numbers are known."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from policygrain.study import Study
from policygrain.study.runs import run_matrix
from policygrain.tasks.registry import sampling_of

RATIOS = ("sequence", "block K=5", "token", "block K=5, joint", "prefix")


def make_up(study: Study, folder: Path, right: dict[str, int]) -> Path:
    """Records of all runs of a study: ``right`` of 12 problems for the arms named, 6 for the others."""
    matrix = run_matrix(study)
    for run in matrix.runs:
        (folder / run.folder).mkdir(parents=True)
        updates = matrix.arms[run.arm].training(study).updates_per_batch
        shared = {"gradient_norm": 1.0, "entropy_old": 0.5, "response_length_mean": 9.0, "effective_sample_share": 0.9}
        rows = [
            {"step": s, "sampled_accuracy": 0.1 * s, "clip_fraction_low": 0.01, "clip_fraction_high": 0.02, **shared}
            | {"total_updates": updates * (s + 1), "total_tokens": 100 * (s + 1)}
            for s in range(3)
        ]
        rows += [{"step": 3, "validation_accuracy": 0.5 + 0.1 * run.seed, "total_tokens": 300}]
        (folder / run.folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        final = {"validation_accuracy": 0.5, "seconds": 6.0, "tokens": 300, "updates": 3 * updates, "samples": 96}
        summary = {
            "key": f"key-{run.arm}-{run.seed}",
            "model_digest": "m",
            "commit": "c0ffee",
            "hardware": "a computer",
        }
        summary |= {"method": {"ratio": "token"}, "training": {"steps": 3}}
        summary |= {"final": final, "versions": {"torch": "2"}, "start": {"model": "tiny", "digest": f"s{run.seed}"}}
        (folder / run.folder / "summary.json").write_text(json.dumps(summary | {"data": {"train": "d"}}))
        timings = [{"step": s, "total_seconds": 2.0 * (s + 1)} for s in range(3)]
        (folder / run.folder / "timings.jsonl").write_text("".join(json.dumps(r) + "\n" for r in timings))
    for name in ("evaluation", "probe"):
        (folder / name).mkdir()
    lines = []
    for model in [*(f"start/seed{s}" for s in study.seeds), *(f"{r.arm}/seed{r.seed}" for r in matrix.evaluated)]:
        count = right.get(model.split("/")[0], 6)
        for benchmark in study.evaluation.benchmarks:
            n = sampling_of(study, benchmark).n
            per_problem = [1.0] * count + [0.0] * (12 - count)
            record = {"model": model, "benchmark": benchmark.name, "protocol_key": "k", "n": n}
            lines.append(json.dumps({**record, "per_problem": per_problem, "accuracy": count / 12}))
    (folder / "evaluation" / "00.jsonl").write_text("\n".join(lines) + "\n")
    for seed in study.seeds:
        rows = [
            {"updates": k, "seed": seed, "ratio": ratio, "ratio_variance": 0.01 * k * grain, "gradient_noise": 1.0}
            | {"effective_sample_share": 0.9}
            for k in (1, 4)
            for grain, ratio in enumerate(RATIOS, start=1)
        ]
        (folder / "probe" / f"seed{seed}.json").write_text(json.dumps({"rows": rows}))
    content = study.model_dump(mode="json") | {"base": None}
    (folder / "study.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder
