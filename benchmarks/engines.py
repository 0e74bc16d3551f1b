"""Rollouts of a pretrained model on a CPU: vLLM beside the engine of transformers, in float32 and bfloat16.

8 prompts × 8 responses of at most 32 tokens, one thread, in turns in one process; start-up is measured apart. Then the
first steps of a run of this model's study, smollm2.yaml, with each engine, side by side in two processes: a
rollout there is several calls of different sizes, and weights are loaded before each. The study uses the engine that is
faster there, start-up included, or the simpler one where they are equal.

    python benchmarks/engines.py models/smollm2-135m-instruct [--rounds 5] [--steps 8] [--out benchmarks/engines.json]
"""

from __future__ import annotations

import math
import os

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from common import parser_of, provenance, save
from policygrain.data.families import generate
from policygrain.data.prompts import PromptRenderer
from policygrain.model.engine import Engine, Request
from policygrain.model.loading import load_model
from policygrain.model.torch_engine import TorchEngine
from policygrain.model.vllm_engine import VllmEngine
from policygrain.paths import RunFolder
from policygrain.provenance import seed_of
from policygrain.results import run_summary, run_timings
from policygrain.study import load_study

STUDY = Path(__file__).parents[1] / "lab/research/studies/smollm2.yaml"
PROMPTS, GROUP, TOKENS = 8, 8, 32
RUN_BATCHES = 100  # rollout batches of a run, with those that dynamic sampling drops


def open_engines(model: str) -> dict[str, tuple[Engine, float]]:
    """Engine and start-up seconds by name."""
    found: dict[str, tuple[Engine, float]] = {}
    for dtype in ("float32", "bfloat16"):
        begin = time.perf_counter()
        loaded, tokenizer = load_model(model, dtype=dtype)
        found[f"transformers, {dtype}"] = (
            TorchEngine(loaded, tokenizer.eos_token_id, tokenizer.pad_token_id),
            time.perf_counter() - begin,
        )
        begin = time.perf_counter()
        found[f"vllm, {dtype}"] = (VllmEngine(model, dtype=dtype, kv_gib=0.5), time.perf_counter() - begin)
    return found


def in_training(model: str, steps: int) -> dict[str, Any]:
    """The first steps of a run by each engine at the same time, a core each."""
    with tempfile.TemporaryDirectory() as place:
        processes = {}
        for engine in ("transformers", "vllm"):
            study = Path(place) / f"{engine}.yaml"
            training = {"engine": engine, "steps": steps, "validate_every": 10 * steps, "checkpoint_every": 10 * steps}
            content = {"base": str(STUDY), "name": engine, "model": {"start": str(Path(model).resolve())}}
            study.write_text(yaml.safe_dump(content | {"training": training}))
            stage = [sys.executable, "-m", "policygrain.cli"]
            options = ["--config", str(study), "--results", f"{place}/results/{engine}"]
            subprocess.run([*stage, "prepare", *options], check=True)
            command = [*stage, "train", *options, "--arm", "tepo", "--seed", "1", "--run-dir", f"{place}/{engine}"]
            processes[engine] = subprocess.Popen(command)
        found = {}
        for engine, process in processes.items():
            if process.wait():
                raise SystemExit(f"the run with {engine} failed")
            run = RunFolder(Path(place) / engine)
            seconds, tokens = run_summary(run).final.seconds, run_summary(run).final.tokens or math.nan
            found[engine] = {
                "seconds_per_1000_tokens": 1000 * seconds / tokens,
                "generate": 1000 * sum(row["seconds/generate"] for row in run_timings(run)) / tokens,
            }
    return {"steps": steps, **found}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("model", help="folder of a model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="training steps with each engine")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    _, tokenizer = load_model(arguments.model)
    renderer = PromptRenderer(tokenizer, load_study(STUDY).prompt)
    problems = generate("plain_sum", "train", PROMPTS // 2, 1) + generate("word_problem", "train", PROMPTS // 2, 1)
    prompts = [renderer.ids(p.problem) for p in problems]
    engines = open_engines(arguments.model)
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    tokens = dict.fromkeys(engines, 0)
    for turn in range(arguments.rounds + 1):  # the first is not counted
        requests = [
            Request(ids, seed_of(turn, i, j), TOKENS, 0.7) for i, ids in enumerate(prompts) for j in range(GROUP)
        ]
        for name, (engine, _) in engines.items():
            begin = time.perf_counter()
            responses = engine.generate(requests)
            if turn:
                seconds[name].append(time.perf_counter() - begin)
                tokens[name] += sum(len(r.ids) for r in responses)
    report: dict[str, Any] = {
        **provenance(),
        "work": f"{PROMPTS} prompts × {GROUP} responses of at most {TOKENS} tokens, one thread",
        "engines": {},
    }
    for name, (_, start) in engines.items():
        spread = {"median": statistics.median(seconds[name]), "min": min(seconds[name]), "max": max(seconds[name])}
        run = start + RUN_BATCHES * spread["median"]
        own = {"seconds": spread, "tokens_per_second": tokens[name] / sum(seconds[name]), "start": start, "run": run}
        report["engines"][name] = own
        speed = f"{own['tokens_per_second']:5.0f} tokens/s, start {start:5.1f} s"
        print(f"{name:24}{spread['median']:6.2f} s a batch, {speed}")
    del engines
    report["training"] = in_training(arguments.model, arguments.steps)
    print(report["training"])
    save(report, arguments.out)


if __name__ == "__main__":
    main()
