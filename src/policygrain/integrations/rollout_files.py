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
from ..objective.advantage import Grpo
from ..objective.batch import TokenBatch

# Names of the columns in trainers' dumps and in the arguments of their loss functions.
OLD = ("old_log_probs", "old_log_prob", "old_per_token_logps", "inference_logprobs", "rollout_log_probs", "logprobs")
NEW = ("log_probs", "log_prob", "per_token_logps", "trainer_logprobs", "new_log_probs")
MASK = ("mask", "response_mask", "completion_mask", "loss_mask")
ADVANTAGE = ("advantage", "advantages")
REWARD = ("reward", "rewards", "score", "acc")
GROUP = ("group", "group_id", "uid", "prompt_id", "problem_id")
ROUNDING = 1e-3  # by which a computed log-probability may exceed 0
LEAST_LOG_PROB = -1e4
LARGEST = 1e100  # of other numbers: their squares are finite
STALENESS = ("staleness", "updates", "off_policy_steps")


class Rollouts(NamedTuple):
    """``batch``: all responses. ``staleness``: updates between the two policies, [batch], or None."""

    batch: TokenBatch
    staleness: Tensor | None


def read_rollouts(path: Path) -> Rollouts:
    """Read a file of responses, or all files of a folder. UserError names the line and the key that are wrong.

    A row has the old and the new log-probabilities of its tokens, and either an advantage or a reward and a group. Rows
    may have a mask and a staleness. Column names of TRL, verl and prime-rl are understood; prime-rl's folder
    `token_exports` can be read as it is. Where the mask is 0, numbers may be missing (null).
    """
    old, new, masks, staleness = [], [], [], []
    advantages: list[Tensor] = []  # [tokens] each
    rewards: dict[str, list[tuple[int, float]]] = {}
    for where, row in _rows(path):
        mask_key = _key(row, MASK)
        mask = None if mask_key is None else _numbers(row, MASK, where)
        before, after = (_numbers(row, names, where, mask) for names in (OLD, NEW))
        if len(before) != len(after) or not before:
            raise UserError(
                f"{where}: {len(before)} old and {len(after)} new log-probabilities; expected as many, at least one."
            )
        mask = [1.0] * len(before) if mask is None else mask
        for names, numbers in ((OLD, before), (NEW, after)):
            _check_log_probs(numbers, mask, f"{where}: {_key(row, names)}")
        if len(mask) != len(before):
            raise UserError(f"{where}: {mask_key}: {len(mask)} entries for {len(before)} tokens.")
        if not any(mask):
            continue
        old.append(torch.tensor(before, dtype=torch.float64))
        new.append(torch.tensor(after, dtype=torch.float64))
        masks.append(torch.tensor(mask) != 0)
        if (key := _key(row, ADVANTAGE)) is not None:
            value = row[key]
            given = _numbers(row, ADVANTAGE, where, mask) if isinstance(value, list) else [_number(value, where)]
            if len(given) not in (1, len(before)):
                raise UserError(f"{where}: {key}: {len(given)} advantages for {len(before)} tokens.")
            advantages.append(torch.tensor(given, dtype=torch.float64).expand(len(before)))
        else:
            reward, group = _key(row, REWARD), _key(row, GROUP)
            if reward is None or group is None:
                raise UserError(
                    f"{where}: needs `advantage`, or `reward` and `group`; it has {', '.join(map(repr, row))}."
                )
            rewards.setdefault(str(row[group]), []).append((len(old) - 1, _number(row[reward], f"{where}: {reward}")))
            advantages.append(torch.zeros(len(before), dtype=torch.float64))  # those of its group, below
        if (key := _key(row, STALENESS)) is not None:
            staleness.append(_number(row[key], f"{where}: {key}"))
            if staleness[-1] < 0:
                raise UserError(f"{where}: {key}: {staleness[-1]:g} updates; expected 0 or more.")
    if not old:
        raise UserError(f"{path}: contains no response.")
    if staleness and len(staleness) != len(old):
        raise UserError(f"{path}: {len(staleness)} of {len(old)} rows have a staleness; all or none.")
    for group, members in rewards.items():
        if len(members) < 2:
            raise UserError(
                f"{path}: group {group!r} has one response; an advantage needs at least two, or give `advantage`."
            )
        values = Grpo()(torch.tensor([[reward for _, reward in members]], dtype=torch.float64))[0]
        for (place, _), value in zip(members, values, strict=True):
            advantages[place] = value.expand(len(old[place]))
    log_probs, old_log_probs, per_token, mask_rows = (
        torch.nn.utils.rnn.pad_sequence(rows, batch_first=True) for rows in (new, old, advantages, masks)
    )
    batch = TokenBatch(log_probs, old_log_probs, per_token, mask_rows)
    return Rollouts(batch, torch.tensor(staleness) if staleness else None)


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(place, row) of a JSON Lines or Parquet file, or of all such files in a folder and its folders."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in (".jsonl", ".parquet"))
        if not files:
            raise UserError(f"{path}: no .jsonl or .parquet file in this folder.")
        for file in files:
            yield from _rows(file)
        return
    if path.suffix == ".parquet":
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise UserError(f"{path}: Parquet needs pyarrow: pip install pyarrow, or give JSON Lines.") from error
        try:
            rows = parquet.read_table(path).to_pylist()
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read as Parquet: {error}") from error
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, start=1))
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
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: not JSON ({error}); was the file cut off?") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: expected an object, got {type(row).__name__}.")
        yield f"{path}, line {number}", row


def _key(row: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of these columns that a row has."""
    return next((name for name in names if row.get(name) is not None), None)


def _numbers(
    row: Mapping[str, Any], names: Sequence[str], where: str, mask: Sequence[float] | None = None
) -> list[float]:
    """A column of numbers, one per token; 0 for one that is null where ``mask`` is 0."""
    if (key := _key(row, names)) is None:
        raise UserError(f"{where}: has none of {', '.join(map(repr, names))}; it has {', '.join(map(repr, row))}.")
    value = row[key]
    if not isinstance(value, list):
        raise UserError(f"{where}: {key}: expected a list of numbers, one per token.")
    if mask is not None and len(mask) == len(value):
        value = [0.0 if item is None and not used else item for item, used in zip(value, mask, strict=True)]
    return [_number(item, f"{where}: {key}") for item in value]


def _check_log_probs(values: Sequence[float], mask: Sequence[float], where: str) -> None:
    """UserError for the first token, of those in ``mask``, whose number cannot be the logarithm of a probability."""
    for place, (value, is_used) in enumerate(zip(values, mask, strict=False), start=1):
        if is_used and not LEAST_LOG_PROB <= value <= ROUNDING:
            raise UserError(
                f"{where}: token {place}: {value:g} cannot be a log-probability, which is at most 0 and not below "
                f"{LEAST_LOG_PROB:g}. Give natural logarithms of probabilities, not probabilities, logits or losses."
            )


def _number(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{where}: {value!r} is no finite number.")
    if abs(value) > LARGEST:
        raise UserError(f"{where}: {value:g} is too large to compute with (at most {LARGEST:g}).")
    return float(value)
