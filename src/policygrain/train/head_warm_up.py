"""Warm-up of multi-token prediction heads on samples of the initial model, before the first step."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from ..clock import Clock
from ..model.logprobs import score_tokens
from ..model.sequences import micro_batches, pack
from ..objective import Method, Sampler
from ..paths import RunFolder
from ..provenance import seed_of
from ..records import MtpHeadsRecord, write_record
from .policy import Policy
from .rollouts import Collector, PromptStream


def warm_up(policy: Policy, method: Method, collector: Collector, run: RunFolder) -> None:
    """Train the heads by cross-entropy on responses sampled from the policy, which is not changed.

    Prompts and sampling seeds are separate from those of training. Writes `MtpHeadsRecord`.
    """
    heads = policy.heads
    assert heads is not None
    started, seed = time.perf_counter(), seed_of("heads", collector.seed)
    warm_up_collector = replace(
        collector, stream=PromptStream(collector.stream.problems, seed), sampler=Sampler(dynamic=False), seed=seed
    )
    settings = collector.settings
    optimizer = torch.optim.AdamW(heads.parameters(), lr=method.mtp_heads.learning_rate, weight_decay=0.0)
    losses, position = [], 0
    for _ in range(method.mtp_heads.warmup_batches):
        warm_up_collector.engine.load_weights(policy.model)
        rollouts = warm_up_collector.collect(Clock(), position)
        position += rollouts.sampled
        warm_up_collector.engine.sleep()
        sequences = pack(
            [p for p in rollouts.prompts for _ in range(settings.group)],
            [r.ids for group in rollouts.responses for r in group],
            policy.tokenizer.pad_token_id,
        )
        # Each micro-batch is an optimizer step of its own.
        for rows in micro_batches(sequences, settings.micro_batch_tokens):
            part = sequences.rows(rows)
            loss = score_tokens(policy.model, part, settings.temperature, heads=heads).future_loss
            assert loss is not None
            optimizer.zero_grad(set_to_none=True)
            (loss / part.mask.sum()).backward()
            optimizer.step()
            losses.append(loss.item() / int(part.mask.sum()))
    record = MtpHeadsRecord(
        losses=losses, seconds=time.perf_counter() - started, parameters=sum(p.numel() for p in heads.parameters())
    )
    write_record(run.mtp_heads, record)
