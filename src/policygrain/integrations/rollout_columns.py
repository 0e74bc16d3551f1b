"""Columns of a file of responses: their names in trainers' dumps, and the checks of their values."""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UserError

# Names of the columns in trainers' dumps and in the arguments of their loss functions.
OLD = ("old_log_probs", "old_log_prob", "old_per_token_logps", "inference_logprobs", "rollout_log_probs", "logprobs")
NEW = ("log_probs", "log_prob", "per_token_logps", "trainer_logprobs", "new_log_probs")
MASK = ("mask", "response_mask", "completion_mask", "loss_mask")
ADVANTAGE = ("advantage", "advantages")
REWARD = ("reward", "rewards", "score", "acc")
GROUP = ("group", "group_id", "uid", "prompt_id", "problem_id")
# Optional columns, of all rows or of none: numbers of tokens, and of responses.
PER_TOKEN = {
    "rollout_log_probs": ("rollout_log_probs", "inference_logprobs", "sampling_per_token_logps"),
    "ref_log_probs": ("ref_log_probs", "ref_log_prob", "ref_per_token_logps", "ref_logprobs"),
    "entropy": ("entropy", "entropies"),
    "old_entropy": ("old_entropy", "old_entropies"),
    "segments": ("segments",),
    "ids": ("completion_ids", "response_ids", "token_ids"),
}
PER_RESPONSE = {
    "reward": REWARD,
    "staleness": ("staleness", "updates", "off_policy_steps"),
    "step": ("step",),
    "top_p": ("top_p",),
}
INTEGERS = ("group", "segments", "ids")
PROMPT = ("prompt_ids", "prompt_token_ids")
READ = {*OLD, *NEW, *MASK, *ADVANTAGE, *GROUP, *PROMPT}.union(*PER_TOKEN.values(), *PER_RESPONSE.values())
ROUNDING = 1e-3  # by which a computed log-probability may exceed 0
LEAST_LOG_PROB = -1e4
LARGEST = 1e100  # of other numbers: their squares are finite


@functools.lru_cache(maxsize=256)
def names_in(keys: tuple[str, ...]) -> Mapping[str, Sequence[str]]:
    """Column of numbers of tokens → its names, for a row with these keys.

    Log-probabilities of the engine are those of the old policy, or a column of their own beside them.
    """
    old = _first(keys, OLD)
    optional = {name: tuple(column for column in names if column != old) for name, names in PER_TOKEN.items()}
    optional = {name: names for name, names in optional.items() if _first(keys, names) is not None}
    return {"old_log_probs": OLD, "log_probs": NEW} | optional


def key_of(row: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of these columns that a row has."""
    return _first(tuple(row), tuple(names))


@functools.lru_cache(maxsize=4096)
def _first(keys: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in keys), None)


def listed(row: Mapping[str, Any]) -> str:
    """Its columns, for a message."""
    return ", ".join(map(repr, row))


def numbers_of(
    row: Mapping[str, Any], names: Sequence[str], where: str, mask: Sequence[float] | None = None
) -> array[float]:
    """A column of numbers, one per token; 0 for one that is null where ``mask`` is 0."""
    if (key := key_of(row, names)) is None:
        raise UserError(f"{where}: has none of {', '.join(map(repr, names))}; it has {listed(row)}.")
    value = row[key]
    if not isinstance(value, list):
        raise UserError(f"{where}: {key}: expected a list of numbers, one per token.")
    if mask is not None and len(mask) == len(value) and None in value:
        value = [0.0 if item is None and not used else item for item, used in zip(value, mask, strict=True)]
    try:
        numbers = array("d", value)
        if not numbers or (max(map(abs, numbers)) <= LARGEST and not math.isnan(sum(numbers))):
            return numbers
    except (TypeError, OverflowError):
        pass
    return array("d", [number_of(item, f"{where}: {key}") for item in value])


def scored_row(
    row: Mapping[str, Any], names: Sequence[str], old_key: str, mask: Sequence[float] | None
) -> tuple[Mapping[str, Any], int]:
    """The row with the old policy's numbers where the engine has none (NaN, null), and at how many tokens it has none.

    Its weight π_old/μ is then 1, as in training (`objective.loss.anchored`). Tokens outside ``mask`` are not counted.
    """
    key = key_of(row, names)
    assert key is not None
    engine, old = row[key], row[old_key]
    if not (isinstance(engine, list) and isinstance(old, list) and len(engine) == len(old)):
        return row, 0
    unknown = [place for place, x in enumerate(engine) if x is None or (isinstance(x, float) and math.isnan(x))]
    if not unknown:
        return row, 0
    filled = engine.copy()
    for place in unknown:
        filled[place] = old[place]
    used = unknown if mask is None or len(mask) != len(old) else [place for place in unknown if mask[place]]
    return {**row, key: filled}, len(used)


def mask_of(values: Sequence[float], where: str) -> array[int]:
    """The mask. UserError for other values than 0 and 1."""
    for place, value in enumerate(values, start=1):
        if value not in (0, 1):
            raise UserError(f"{where}: token {place}: {value:g} is neither 0 nor 1.")
    return array("b", [value != 0 for value in values])


def check_segments(values: Sequence[float], mask: Sequence[float], where: str) -> None:
    """UserError for a segment, among the tokens of ``mask``, that comes back after another one."""
    seen, last = set[float](), None
    for place, (value, is_used) in enumerate(zip(values, mask, strict=True), start=1):
        if value % 1:
            raise UserError(f"{where}: token {place}: {value:g} is no whole number.")
        if not is_used or value == last:
            continue
        if value in seen:
            raise UserError(
                f"{where}: {value:g} comes back at token {place}. A segment is tokens that follow one another: give "
                "this one a number of its own."
            )
        seen.add(value)
        last = value


def check_log_probs(values: Sequence[float], mask: Sequence[float], where: str) -> None:
    """UserError for the first token, of those in ``mask``, whose number cannot be the logarithm of a probability."""
    if min(values) >= LEAST_LOG_PROB and max(values) <= ROUNDING:
        return
    for place, (value, is_used) in enumerate(zip(values, mask, strict=True), start=1):
        if is_used and not LEAST_LOG_PROB <= value <= ROUNDING:
            raise UserError(
                f"{where}: token {place}: {value:g} cannot be a log-probability, which is at most 0 and not below "
                f"{LEAST_LOG_PROB:g}. Give natural logarithms of probabilities, not probabilities, logits or losses."
            )


def number_of(value: Any, where: str) -> float:
    """A finite number."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # an integer beyond all floats
        number = math.inf
    if not math.isfinite(number):
        raise UserError(f"{where}: {value!r} is no finite number.")
    if abs(number) > LARGEST:
        raise UserError(f"{where}: {number:g} is too large to compute with (at most {LARGEST:g}).")
    return number
