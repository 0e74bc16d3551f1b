"""Responses of a user's own run: old and new log-probabilities, rewards and groups, from JSON Lines or Parquet."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import UserError
from ..objective.advantage import grpo
from ..objective.batch import TokenBatch

# What trainers call the columns, in their dumps or in what their loss functions get.
OLD = ("old_log_probs", "old_log_prob", "old_per_token_logps", "inference_logprobs", "rollout_log_probs", "logprobs")
NEW = ("log_probs", "log_prob", "per_token_logps", "trainer_logprobs", "new_log_probs")
MASK = ("mask", "response_mask", "completion_mask", "loss_mask")
ADVANTAGE = ("advantage", "advantages")
REWARD = ("reward", "rewards", "score", "acc")
GROUP = ("group", "group_id", "uid", "prompt_id", "problem_id")
STALENESS = ("staleness", "updates", "off_policy_steps")


class Rollouts(NamedTuple):
    """``batch``: all responses. ``staleness``: updates between the two policies, [batch], or None."""

    batch: TokenBatch
    staleness: Tensor | None


def read_rollouts(path: Path) -> Rollouts:
    """Read a file of responses. UserError names the line and the key that are wrong.

    A row has the old and the new log-probabilities of its tokens, and either an advantage or a reward and a group. Rows
    may have a mask and a staleness. Column names of TRL, verl and prime-rl are understood.
    """
    old, new, masks, advantages, staleness = [], [], [], [], []
    rewards: dict[str, list[tuple[int, float]]] = {}
    for number, row in enumerate(_rows(path), start=1):
        where = f"{path}, row {number}"
        before, after = (_numbers(row, names, where) for names in (OLD, NEW))
        if len(before) != len(after) or not before:
            raise UserError(
                f"{where}: {len(before)} old and {len(after)} new log-probabilities; expected as many, at least one."
            )
        mask_key = _key(row, MASK)
        mask = [1.0] * len(before) if mask_key is None else _numbers(row, MASK, where)
        if len(mask) != len(before):
            raise UserError(f"{where}: {mask_key}: {len(mask)} entries for {len(before)} tokens.")
        if not any(mask):
            continue
        old.append(torch.tensor(before, dtype=torch.float64))
        new.append(torch.tensor(after, dtype=torch.float64))
        masks.append(torch.tensor(mask) != 0)
        if (key := _key(row, ADVANTAGE)) is not None:
            value = row[key]
            advantages.append(_number(value[0] if isinstance(value, Sequence) else value, f"{where}: {key}"))
        else:
            reward, group = _key(row, REWARD), _key(row, GROUP)
            if reward is None or group is None:
                raise UserError(
                    f"{where}: needs `advantage`, or `reward` and `group`; it has {', '.join(map(repr, row))}."
                )
            rewards.setdefault(str(row[group]), []).append((len(old) - 1, _number(row[reward], f"{where}: {reward}")))
            advantages.append(math.nan)
        if (key := _key(row, STALENESS)) is not None:
            staleness.append(_number(row[key], f"{where}: {key}"))
    if not old:
        raise UserError(f"{path}: contains no response.")
    if staleness and len(staleness) != len(old):
        raise UserError(f"{path}: {len(staleness)} of {len(old)} rows have a staleness; all or none.")
    for group, members in rewards.items():
        if len(members) < 2:
            raise UserError(
                f"{path}: group {group!r} has one response; an advantage needs at least two, or give `advantage`."
            )
        values = grpo(torch.tensor([[reward for _, reward in members]], dtype=torch.float64))[0]
        for (place, _), value in zip(members, values.tolist(), strict=True):
            advantages[place] = value
    log_probs, old_log_probs, mask_rows = (
        torch.nn.utils.rnn.pad_sequence(rows, batch_first=True) for rows in (new, old, masks)
    )
    batch = TokenBatch(log_probs, old_log_probs, torch.tensor(advantages, dtype=torch.float64), mask_rows)
    return Rollouts(batch, torch.tensor(staleness) if staleness else None)


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of a JSON Lines or Parquet file."""
    if path.suffix == ".parquet":
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise UserError(f"{path}: Parquet needs pyarrow: pip install pyarrow, or give JSON Lines.") from error
        try:
            yield from parquet.read_table(path).to_pylist()
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read as Parquet: {error}") from error
        return
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: not JSON ({error}); was the file cut off?") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: expected an object, got {type(row).__name__}.")
        yield row


def _key(row: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of these columns that a row has."""
    return next((name for name in names if row.get(name) is not None), None)


def _numbers(row: Mapping[str, Any], names: Sequence[str], where: str) -> list[float]:
    if (key := _key(row, names)) is None:
        raise UserError(f"{where}: has none of {', '.join(map(repr, names))}; it has {', '.join(map(repr, row))}.")
    value = row[key]
    if not isinstance(value, list):
        raise UserError(f"{where}: {key}: expected a list of numbers, one per token.")
    return [_number(item, f"{where}: {key}") for item in value]


def _number(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{where}: {value!r} is no finite number.")
    return float(value)
