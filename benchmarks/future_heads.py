"""What MPO's prediction heads cost beside the backbone form: the same batch, the same updates, in turns.

A batch of the laptop study's size is sampled once; then each side takes turns in scoring it and making its optimizer
steps, one CPU thread, float32, from the same weights each time. `warm-up` is what training the heads costs before the
first step. The ratio is seconds with heads over seconds without.

    python benchmarks/future_heads.py [--rounds 7] [--out results/benchmarks/future_heads.json]
"""

from __future__ import annotations

import os

# Read when the libraries are loaded.
os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

import copy
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from common import parser_of, provenance, save
from policygrain.clock import Clock
from policygrain.data.families import FAMILIES, LEVELS, generate
from policygrain.data.prompts import PromptRenderer
from policygrain.grading import NumericGrader
from policygrain.model.engine import Rollout
from policygrain.model.loading import load_model
from policygrain.model.vllm_engine import open_engine
from policygrain.objective import Method, method
from policygrain.study.schema import Prompt, TinyModel, Training, WarmStart
from policygrain.train.batch import make_batch, minibatches
from policygrain.train.loop import warm_up_heads
from policygrain.train.policy import Policy, build_heads, make_optimizer, update
from policygrain.train.rollouts import Collector, PromptStream
from policygrain.train.start_model import character_tokenizer, finetune, tiny_model

SETTINGS = Training(prompts_per_step=12, group=8, updates_per_batch=4, max_tokens=112, threads=1)
SIDES = {
    "backbone": method("mpo", sampler={"dynamic": False}),
    "heads": method("mpo_heads", sampler={"dynamic": False}),
}


def one_step(chosen: Method, start: Policy, rollouts: list[Rollout]) -> float:
    """Seconds of scoring a batch and making its updates, on a copy of the policy."""
    model, heads = copy.deepcopy(start.model), copy.deepcopy(start.heads) if chosen.n_mtp_heads else None
    optimizer = make_optimizer(model, heads, chosen, SETTINGS)
    policy = Policy(model, start.tokenizer, start.reference, heads, optimizer)
    begin = time.perf_counter()
    batch, _ = make_batch(rollouts, policy, chosen, SETTINGS)
    for rows in minibatches(SETTINGS.prompts_per_step, SETTINGS.group, SETTINGS.updates_per_batch, seed=0):
        update(policy, batch.rows(rows), chosen, SETTINGS)
    return time.perf_counter() - begin


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    problems = [p for family in FAMILIES for p in generate(family, "train", 200, 0)]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = character_tokenizer()
        model, spec = tiny_model(TinyModel(layers=2), tokenizer, 0), WarmStart(steps=200, mixed_steps=60)
        finetune(model, PromptRenderer(tokenizer, Prompt()), list(FAMILIES), list(LEVELS), spec, 0)
        model.save_pretrained(Path(folder))
        tokenizer.save_pretrained(folder)
        policy_model, tokenizer = load_model(folder)
        reference = copy.deepcopy(policy_model)
        engine = open_engine("transformers", folder, policy_model, tokenizer)
        renderer = PromptRenderer(tokenizer, Prompt())
        sampler = SIDES["backbone"].sampler
        collector = Collector(PromptStream(problems, 0), engine, NumericGrader(), renderer, sampler, SETTINGS, seed=0)
        rollouts, _ = collector.collect(policy_model, 0, Clock())
        foreseen = SIDES["heads"]
        heads = build_heads(policy_model, foreseen, 0)
        assert heads is not None
        optimizer = make_optimizer(policy_model, heads, foreseen, SETTINGS)
        policy = Policy(policy_model, tokenizer, reference, heads, optimizer)
        begin = time.perf_counter()
        losses = warm_up_heads(policy, foreseen, collector)
        warm_up_seconds = time.perf_counter() - begin
        seconds: dict[str, list[float]] = {name: [] for name in SIDES}
        for _ in range(1 + arguments.rounds):
            for name, chosen in SIDES.items():
                seconds[name].append(one_step(chosen, policy, rollouts))
    seconds = {name: values[1:] for name, values in seconds.items()}
    ratios = [a / b for a, b in zip(seconds["heads"], seconds["backbone"], strict=True)]
    report: dict[str, Any] = {
        **provenance(),
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
        "warm_up": {
            "seconds": warm_up_seconds,
            "parameters": sum(p.numel() for p in heads.parameters()),
            "model_parameters": sum(p.numel() for p in model.parameters()),
            "loss_first": statistics.mean(losses[:3]),
            "loss_last": statistics.mean(losses[-3:]),
        },
    }
    for key in ("seconds", "ratio", "warm_up"):
        print(f"{key}: " + ", ".join(f"{k} {v:.3g}" for k, v in report[key].items()))
    save(report, arguments.out)


if __name__ == "__main__":
    main()
