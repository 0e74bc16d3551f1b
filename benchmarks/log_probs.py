"""Log-probabilities and entropy from hidden states, forward and backward: seconds and memory of three ways.

- `plain`: all logits at once, log_softmax, and the entropy from it;
- `blocks`: what PolicyGrain does, blocks of tokens × vocabulary (`model/scoring.py`);
- `liger`: Liger's fused linear GRPO loss, where a GPU and `liger_kernel` are there. It has no entropy.

Two tasks: `both`, gradients through log-probabilities and entropy; `loss`, GRPO's clipped loss, with the entropy for
the record alone. Gradients reach the hidden states and the unembedding matrix (1536 × 151,936, a 1.5B model's). Each
measurement is a process of its own, sides take turns, and extra memory is what is in use at the peak beyond inputs:
resident memory on a CPU, what torch allocated on a GPU. It contains the matrix's gradient, which no way can do without.
Speed is plain's seconds over the other's, memory the other's over plain's. Seconds are the process's own on a CPU (one
thread; other work on the machine does not lengthen them), wall time on a GPU.

    python benchmarks/log_probs.py [--tokens 2048] [--rounds 3] [--out results/benchmarks/log_probs.json]

On a CPU float32 and one thread: about ten minutes and 8 GB; on a GPU bfloat16.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # read when the libraries are loaded

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from common import parser_of, provenance, save
from policygrain.model.scoring import log_probs_and_entropy

HIDDEN, VOCABULARY = 1536, 151_936
RESPONSE = 256  # tokens; Liger wants rows
TASKS = {"both": ("plain", "blocks"), "loss": ("plain", "blocks", "liger")}


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    log_p = torch.log_softmax(F.linear(hidden, weight).float(), dim=-1)
    with torch.set_grad_enabled(entropy_gradient):
        entropy = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(1, targets.unsqueeze(1)).squeeze(1), entropy


def blocks(hidden: Tensor, weight: Tensor, targets: Tensor, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    return log_probs_and_entropy(hidden, weight, None, targets, 1.0, entropy_gradient)


def liger_missing(device: str) -> str | None:
    """Why Liger's loss cannot be measured; None where it can."""
    if device != "cuda":
        return "no GPU"
    return None if importlib.util.find_spec("liger_kernel") else "liger_kernel is not installed"


def work(side: str, task: str, tokens: int, vocabulary: int, device: str) -> tuple[Callable[[], None], list[Tensor]]:
    """A forward and backward pass, and the inputs that get gradients."""
    generator = torch.Generator(device).manual_seed(0)
    draw: dict[str, Any] = {"generator": generator, "device": device}
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    hidden = torch.randn(tokens, HIDDEN, dtype=dtype, **draw).requires_grad_()
    weight = torch.randn(vocabulary, HIDDEN, dtype=dtype, **draw).div_(HIDDEN**0.5).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,), **draw)
    old = -torch.rand(tokens, **draw) - 11
    advantages = torch.randn(tokens // RESPONSE, **draw)

    def with_liger() -> None:
        from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

        shape = tokens // RESPONSE, RESPONSE
        mask = torch.ones(shape, dtype=torch.long, device=device)
        loss = LigerFusedLinearGRPOLoss(beta=0.0, use_ref_model=False)(
            hidden.view(*shape, HIDDEN),
            weight,
            targets.view(shape),
            mask,
            advantages,
            old_per_token_logps=old.view(shape),
        )
        loss[0].backward()

    def of_ours() -> None:
        way = plain if side == "plain" else blocks
        log_prob, entropy = way(hidden, weight, targets, task == "both")
        if task == "both":
            loss = (log_prob - 0.1 * entropy).mean()
        else:
            ratio, advantage = (log_prob - old).exp(), advantages.repeat_interleave(RESPONSE)
            loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        loss.backward()

    return with_liger if side == "liger" else of_ours, [hidden, weight]


def measure(side: str, task: str, tokens: int, vocabulary: int, device: str, repeats: int) -> dict[str, Any]:
    """Seconds of each repeat, and the most memory that any of them needed beyond the inputs, in bytes."""
    work(side, task, RESPONSE, 8192, device)[0]()  # libraries wake up, kernels are compiled
    call, inputs = work(side, task, tokens, vocabulary, device)
    seconds, extra = [], []
    clock = time.perf_counter if device == "cuda" else time.process_time
    for _ in range(repeats):
        for x in inputs:
            x.grad = None
        before = reset_peak(device)
        begin = clock()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock() - begin)
        extra.append(peak(device) - before)
    return {"seconds": seconds, "extra_bytes": max(extra)}


def reset_peak(device: str) -> int:
    """Forget the peak so far; bytes in use now."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the high-water mark falls to what is resident
    return peak(device)


def peak(device: str) -> int:
    """Bytes in use at the peak."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def compare(task: str, tokens: int, vocabulary: int, device: str, rounds: int, repeats: int) -> dict[str, Any]:
    """All sides of a task in turns, a process each; medians, and ratios to `plain`. A side that fails says why."""
    sides: dict[str, dict[str, list[float]]] = {side: {"seconds": [], "extra_bytes": []} for side in TASKS[task]}
    failed: dict[str, str] = {}
    if "liger" in sides and (reason := liger_missing(device)):
        failed["liger"] = f"skipped: {reason}"
    for _ in range(rounds):
        for side, rows in sides.items():
            if side in failed:
                continue
            arguments = ["--worker", side, task, *map(str, (tokens, vocabulary, device, repeats))]
            done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
            if done.returncode:
                failed[side] = done.stderr.strip().split("\n")[-1] or f"ended with {done.returncode}"
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            rows["seconds"].append(statistics.median(found["seconds"]))
            rows["extra_bytes"].append(found["extra_bytes"])
    report: dict[str, Any] = {"task": task, "tokens": tokens}
    for side, rows in sides.items():
        if side in failed:
            report[side] = failed[side]
            continue
        report[side] = {"seconds": statistics.median(rows["seconds"]), "extra_gib": max(rows["extra_bytes"]) / 2**30}
        if side != "plain" and "plain" not in failed:
            ratios = [a / b for a, b in zip(sides["plain"]["seconds"], rows["seconds"], strict=True)]
            report[side] |= {
                "speed_over_plain": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
                "memory_over_plain": report[side]["extra_gib"] / report["plain"]["extra_gib"],
            }
    return report


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", help="2048 on a CPU, 8192 on a GPU")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--worker", nargs=6, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        side, task, tokens, vocabulary, device, repeats = arguments.worker
        print(json.dumps(measure(side, task, int(tokens), int(vocabulary), device, int(repeats))))
        return

    device = "cuda" if torch.cuda.is_available() else "cpu"
    # A pass takes milliseconds on a GPU and most of a minute on a CPU.
    repeats = 20 if device == "cuda" else 1
    report: dict[str, Any] = {
        **provenance(),
        "shape": {"hidden": HIDDEN, "vocabulary": VOCABULARY},
        "rounds": arguments.rounds,
        "results": [],
    }
    for tokens in arguments.tokens or [8192 if device == "cuda" else 2048]:
        for task in TASKS:
            found = compare(task, tokens, VOCABULARY, device, arguments.rounds, repeats)
            report["results"].append(found)
            print(json.dumps(found))
            save(report, arguments.out)


if __name__ == "__main__":
    main()
