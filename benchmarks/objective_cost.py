"""What the objective costs: as a share of a training step, in TRL, and a block ratio beside the token ratio.

One CPU thread. What `PolicyGrainTrainer` adds to TRL's step is measured in TRL (`integration_cost.py`). The rest are
three measurements on random numbers of the shape of a 1.5B model: hidden size 1536, vocabulary 151,936, a step of
8 × 1024 response tokens, float32.

- `objective`: from log-probabilities to the loss, its metrics and the gradient by the log-probabilities, for each
  headline preset. It is everything that a preset adds to a step: building the batch, ratio, clip, aggregation, penalty.
- `lm_head`: the part of a step that surely happens: hidden states times the output matrix, log-softmax, the sampled
  tokens' log-probabilities, and the gradient by hidden states and matrix. A real step also has the transformer layers,
  sampling, old log-probabilities and the optimizer, so this is a lower bound of a step, and the objective's share of
  it an upper bound. It goes by chunks, since the logits of all tokens would be 5 GB; a few chunks are timed and the
  result is scaled to all tokens, which is exact for work that is linear in them.
- `block`: the preset `mpo` with K = 1, 2, 5 and 8 beside the same with the token ratio; and the ratio stage alone, from
  log-probabilities to r and back, where a token ratio does next to nothing and fixed costs of single operations show.

Candidates take turns, so that a busy machine slows all of them; a number is the median over rounds.

    python benchmarks/objective_cost.py [--rounds 30] [--chunks 3] [--out results/benchmarks/objective_cost.json]

About four minutes, 4 GB, no network.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # read when the libraries are loaded

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from common import parser_of, provenance, save
from integration_cost import in_trl
from policygrain import Method, TokenBatch, method

SEED = 0
RESPONSES, TOKENS, HIDDEN, VOCABULARY = 8, 1024, 1536, 151_936
CHUNK = 256  # tokens whose logits are there at once
HEADLINE = ("grpo", "dapo", "tepo", "mpo")
SIZES = (1, 2, 5, 8)
REPEATS = 10  # calls in a turn
SHARE_TARGET, BLOCK_TARGET = 0.02, 2.0


def made_up() -> dict[str, Any]:
    """A batch of full responses, a little off-policy."""
    generator = torch.Generator().manual_seed(SEED)
    noise = torch.randn((4, RESPONSES, TOKENS), generator=generator)
    old, entropy = -noise[0].abs(), noise[1].abs()
    return {
        "log_probs": (old + 0.1 * noise[2]).requires_grad_(),
        "old_log_probs": old,
        "advantages": torch.randn(RESPONSES, generator=generator),
        "mask": torch.ones(RESPONSES, TOKENS, dtype=torch.bool),
        "entropy": entropy + 0.1 * noise[3],
        "old_entropy": entropy,
    }


def objective(chosen: Method, fields: dict[str, Any]) -> Callable[[], object]:
    """Forward and backward of the whole objective, metrics included."""

    def call() -> object:
        return torch.autograd.grad(chosen.loss(TokenBatch(**fields)).loss, fields["log_probs"])

    return call


def ratio_stage(chosen: Method, fields: dict[str, Any]) -> Callable[[], object]:
    """Forward and backward of the ratio alone."""
    batch = TokenBatch(**fields)

    def call() -> object:
        log_r = chosen.ratio(batch)
        return torch.autograd.grad(log_r.exp().sum(), batch.log_probs)

    return call


def in_turns(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, float]]:
    """Seconds of each call: the median over rounds of a turn's mean, and the least and largest of them."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            begin = time.perf_counter()
            for _ in range(REPEATS):
                call()
            if number:  # the first round is not counted
                seconds[name].append((time.perf_counter() - begin) / REPEATS)
    return {name: {"median": statistics.median(s), "min": min(s), "max": max(s)} for name, s in seconds.items()}


def lm_head(chunks: int) -> dict[str, Any]:
    """Seconds of the output layer for all tokens of the step, from those of a few chunks; one more is not counted."""
    generator = torch.Generator().manual_seed(SEED)
    matrix = (torch.randn(VOCABULARY, HIDDEN, generator=generator) / HIDDEN**0.5).requires_grad_()
    hidden = torch.randn(CHUNK, HIDDEN, generator=generator).requires_grad_()
    tokens = torch.randint(VOCABULARY, (CHUNK, 1), generator=generator)
    seconds = []
    for _ in range(chunks + 1):
        begin = time.perf_counter()
        log_probs = torch.log_softmax(hidden @ matrix.T, dim=-1).gather(1, tokens)
        log_probs.sum().backward()
        seconds.append(time.perf_counter() - begin)
    scale = RESPONSES * TOKENS / CHUNK
    kept = seconds[1:]
    return {
        "chunk_tokens": CHUNK,
        "seconds_per_chunk": kept,
        "seconds": {"median": scale * statistics.median(kept), "min": scale * min(kept), "max": scale * max(kept)},
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=30, help=f"turns of each candidate, {REPEATS} calls each")
    parser.add_argument("--chunks", type=int, default=3, help=f"chunks of {CHUNK} tokens of the output layer")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    fields = made_up()
    presets = {name: method(name) for name in HEADLINE}
    ratios = {"token": method("mpo", ratio="token")}
    ratios |= {f"block K={size}": method("mpo", ratio={"size": size}) for size in SIZES}
    ratios |= {"block K=8, tiled": method("mpo_tiled", ratio={"size": 8})}

    whole = in_turns({name: objective(m, fields) for name, m in presets.items()}, arguments.rounds)
    blocks = in_turns({name: objective(m, fields) for name, m in ratios.items()}, arguments.rounds)
    stages = in_turns({name: ratio_stage(m, fields) for name, m in ratios.items()}, arguments.rounds)
    head = lm_head(arguments.chunks)

    trl = in_trl()

    shares = {name: s["median"] / (head["seconds"]["median"] + s["median"]) for name, s in whole.items()}
    over_token = {
        key: {name: s["median"] / rows["token"]["median"] for name, s in rows.items()}
        for key, rows in (("objective", blocks), ("ratio_stage", stages))
    }
    report: dict[str, Any] = {
        **provenance(),
        "threads": torch.get_num_threads(),
        "shape": {"responses": RESPONSES, "tokens": TOKENS, "hidden": HIDDEN, "vocabulary": VOCABULARY},
        "rounds": arguments.rounds,
        "objective": {"seconds": whole, "share_at_most": shares, "target": SHARE_TARGET},
        "lm_head": head,
        "in_trl": trl,
        "block": {"seconds": {"objective": blocks, "ratio_stage": stages}, "over_token": over_token}
        | {"target": BLOCK_TARGET},
    }
    print(f"output layer, {RESPONSES * TOKENS} tokens: {head['seconds']['median']:.1f} s")
    for name, share in shares.items():
        print(f"  {name:18}{1e3 * whole[name]['median']:7.2f} ms, at most {share:.4%} of a step")
    print(f"TRL's step: {trl['seconds_per_step']:.2f} s")
    for name, row in trl["methods"].items():
        print(f"  {name:18}{1e3 * row['added']:+7.1f} ms, {row['share']:+.2%} of a step")
    print("over the token ratio: whole objective, ratio stage alone")
    for name in ratios:
        print(f"  {name:18}{over_token['objective'][name]:7.2f}{over_token['ratio_stage'][name]:7.2f}")
    save(report, arguments.out)


if __name__ == "__main__":
    main()
