"""Responses of a user's own run: log-probabilities, rewards and groups, from JSON Lines or Parquet."""

from __future__ import annotations

import functools
import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..objective.advantage import Advantage, Grpo
from ..objective.batch import TokenBatch
from ..objective.part import Custom

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
MOST_TOKENS = 10_000_000  # which need about 1 GB
ALL_0 = (
    "all advantages are 0: in every group all rewards are the same, so no token has a gradient and no clip "
    "range an effect. Take rollouts in which some responses are right and others wrong."
)


@dataclass(frozen=True)
class Rollouts:
    """Responses, one after another in the order of the file.

    ``tokens``: old_log_probs, log_probs, advantages, mask and the columns of PER_TOKEN that the rows have, each [all
    tokens]. ``responses``: group and the columns of PER_RESPONSE, each [responses]. ``prompts``: token ids, or empty.
    """

    tokens: dict[str, Tensor]
    responses: dict[str, Tensor]
    lengths: Tensor  # [responses]; tokens without the mask count
    prompts: list[array[int]]
    notes: tuple[str, ...] = ()  # what was left out of the file

    @functools.cached_property
    def batch(self) -> TokenBatch:
        """All responses."""
        return self.rows(torch.arange(len(self.lengths)))

    def rows(self, index: Tensor) -> TokenBatch:
        """The responses at ``index`` with all that TokenBatch has a field for."""
        named = {name: x for name, x in self.tokens.items() if name in TokenBatch.__dataclass_fields__}
        padded: dict[str, Any] = {name: self.padded(x, index) for name, x in named.items()}
        for field, column in (("groups", "group"), ("staleness", "staleness")):
            padded[field] = self.responses[column][index] if column in self.responses else None
        return TokenBatch(**padded)

    def padded(self, values: Tensor, index: Tensor) -> Tensor:
        """``values`` [all tokens] of the responses at ``index``, 0 on padding. [responses, tokens]."""
        lengths = self.lengths[index]
        place = torch.arange(int(lengths.max()))
        inside = place < lengths.unsqueeze(1)
        starts = (self.lengths.cumsum(0) - self.lengths)[index]
        found = values[(starts.unsqueeze(1) + place).where(inside, 0)]
        return found.where(inside, torch.zeros((), dtype=values.dtype))

    def each_token(self, values: Tensor) -> Tensor:
        """``values`` [responses] for each of their tokens. [all tokens]."""
        return values.repeat_interleave(self.lengths)


def group_advantages(advantage: Advantage | Custom, rewards: Tensor, groups: Tensor) -> Tensor:
    """Advantages of responses from their rewards and the numbers of their groups, of any sizes. All [responses]."""
    order = groups.argsort(stable=True)
    _, counts = groups.unique(return_counts=True)
    starts = counts.cumsum(0) - counts
    found = torch.zeros_like(rewards)
    for size in counts.unique().tolist():
        members = order[starts[counts == size].unsqueeze(1) + torch.arange(size)]
        found[members] = advantage(rewards[members])
    return found


def read_rollouts(path: Path) -> Rollouts:
    """Read a file of responses, or all files of a folder. UserError names the line and the key that are wrong.

    A row has the old and the new log-probabilities of its tokens, and either an advantage or a reward and a group. Rows
    may have a mask and the columns above. Column names of TRL, verl and prime-rl are understood; prime-rl's folder
    `token_exports` can be read as it is. Where the mask is 0, numbers may be missing (null), and so may those of tokens
    that the engine could not score, beside the old policy's: they count as equal, as in training.
    """
    numbers = {name: array("d") for name in ("old_log_probs", "log_probs", "advantages", *PER_TOKEN)}
    own = {name: array("d") for name in ("group", *PER_RESPONSE)}
    masks, lengths, prompts, groups = array("b"), array("q"), list["array[int]"](), dict[str, int]()
    masked_rows, not_scored, not_read = 0, 0, set[str]()
    for where, row in _rows(path):
        mask_key, old_key, group = _key(row, MASK), _key(row, OLD), _key(row, GROUP)
        given = None if mask_key is None else _numbers(row, MASK, where)
        not_read.update(key for key in row.keys() - READ if row[key] is not None)
        names_of = {"old_log_probs": OLD, "log_probs": NEW}
        for name, names in PER_TOKEN.items():
            others = tuple(
                n for n in names if n != old_key
            )  # an engine's log-probabilities are the old ones, or others
            if _key(row, others) is not None:
                names_of[name] = others
        scored = row
        if "rollout_log_probs" in names_of and old_key is not None:
            scored, unknown = _scored(row, names_of["rollout_log_probs"], old_key, given)
            not_scored += unknown
        columns = {name: _numbers(scored, names, where, given) for name, names in names_of.items()}
        count, after = (len(columns[name]) for name in ("old_log_probs", "log_probs"))
        if count != after or not count:
            raise UserError(f"{where}: {count} old and {after} new log-probabilities; expected as many, at least one.")
        if given is not None and len(given) != count:
            raise UserError(f"{where}: {mask_key}: {len(given)} entries for {count} tokens.")
        mask = array("b", [1]) * count if given is None else _mask(given, f"{where}: {mask_key}")
        for name, values in columns.items():
            key = _key(row, names_of[name])
            if len(values) != count:
                raise UserError(f"{where}: {key}: {len(values)} entries for {count} tokens.")
            if name.endswith("log_probs"):
                _check_log_probs(values, mask, f"{where}: {key}")
            elif name == "segments":
                _check_segments(values, mask, f"{where}: {key}")
        if not any(mask):
            masked_rows += 1
            continue
        if (advantages := _advantages(row, where, given, count)) is not None:
            columns["advantages"] = advantages
        elif _key(row, REWARD) is None or group is None:
            raise UserError(f"{where}: needs `advantage`, or `reward` and `group`; it has {_listed(row)}.")
        for name, values in columns.items():
            numbers[name].extend(values)
        masks.extend(mask)
        lengths.append(count)
        if group is not None:
            own["group"].append(groups.setdefault(str(row[group]), len(groups)))
        for name, names in PER_RESPONSE.items():
            if (key := _key(row, names)) is not None:
                own[name].append(_number(row[key], f"{where}: {key}"))
                if name == "staleness" and own[name][-1] < 0:
                    raise UserError(f"{where}: {key}: {own[name][-1]:g} updates; expected 0 or more.")
        if _key(row, PROMPT) is not None:
            prompts.append(array("q", map(int, _numbers(row, PROMPT, where))))
        if len(masks) > MOST_TOKENS:
            raise UserError(
                f"{where}: more than {MOST_TOKENS:,} tokens up to here. Give the rollouts of fewer steps; those of one "
                "optimizer step are enough."
            )
    if not lengths:
        if masked_rows:
            raise UserError(
                f"{path}: the mask is 0 everywhere in its {masked_rows:,} responses, so no token is trained."
            )
        raise UserError(f"{path}: contains no response.")
    rows_with = {name: len(values) for name, values in own.items()} | {"prompt_ids": len(prompts)}
    tokens_with = {name: len(values) for name, values in numbers.items()}
    for counts, total, what in ((rows_with, len(lengths), "rows"), (tokens_with, len(masks), "tokens")):
        for name, number in counts.items():
            if 0 < number < total:
                raise UserError(f"{path}: {number:,} of {total:,} {what} have a value for {name}; all or none.")
    tokens, responses = (
        {
            name: torch.frombuffer(values, dtype=torch.float64).to(torch.int64 if name in INTEGERS else torch.float64)
            for name, values in found.items()
            if values
        }
        for found in (numbers, own)
    )
    tokens["mask"] = torch.frombuffer(masks, dtype=torch.int8) != 0
    notes = []
    if not_read:
        notes.append(f"columns that are not read: {', '.join(sorted(not_read))}.")
    if not_scored:
        notes.append(
            f"the engine could not score {not_scored:,} tokens (NaN, null); there it counts as equal to old_log_probs."
        )
    rollouts = Rollouts(tokens, responses, torch.frombuffer(lengths, dtype=torch.int64), prompts, tuple(notes))
    if "advantages" not in tokens:
        alone = (responses["group"].bincount() == 1).nonzero()
        if len(alone):
            raise UserError(
                f"{path}: group {list(groups)[int(alone[0])]!r} has one response; an advantage needs at least two, or "
                "give `advantage`."
            )
        tokens["advantages"] = rollouts.each_token(group_advantages(Grpo(), responses["reward"], responses["group"]))
    return rollouts


def _advantages(row: Mapping[str, Any], where: str, mask: Sequence[float] | None, count: int) -> array[float] | None:
    """The advantage that a row gives, for each of its tokens; None if it gives none."""
    if (key := _key(row, ADVANTAGE)) is None:
        return None
    by_token = isinstance(row[key], list)
    given = _numbers(row, ADVANTAGE, where, mask) if by_token else array("d", [_number(row[key], f"{where}: {key}")])
    if len(given) not in (1, count):
        raise UserError(f"{where}: {key}: {len(given)} advantages for {count} tokens.")
    return given if len(given) == count else given * count


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(place, row) of a JSON Lines or Parquet file, or of all such files in a folder and its folders; one at a time."""
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
            batches = parquet.ParquetFile(path).iter_batches(batch_size=256)
            rows = (row for batch in batches for row in batch.to_pylist())
            yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, start=1))
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read as Parquet: {error}") from error
        return
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{path}, line {number}", _parsed(line, f"{path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


def _parsed(line: str, where: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        hint = "was the file cut off?"
        if not line.endswith("\n"):
            hint += " It is the last line: delete it to use the lines before, such as with `sed -i '$d' FILE`."
        raise UserError(f"{where}: not JSON ({error}); {hint}") from error
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected an object, got {type(row).__name__}.")
    return row


def _key(row: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of these columns that a row has."""
    return next((name for name in names if row.get(name) is not None), None)


def _listed(row: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, row))


def _numbers(
    row: Mapping[str, Any], names: Sequence[str], where: str, mask: Sequence[float] | None = None
) -> array[float]:
    """A column of numbers, one per token; 0 for one that is null where ``mask`` is 0."""
    if (key := _key(row, names)) is None:
        raise UserError(f"{where}: has none of {', '.join(map(repr, names))}; it has {_listed(row)}.")
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
    return array("d", [_number(item, f"{where}: {key}") for item in value])


def _scored(
    row: Mapping[str, Any], names: Sequence[str], old_key: str, mask: Sequence[float] | None
) -> tuple[Mapping[str, Any], int]:
    """The row with the old policy's numbers where the engine has none (NaN, null), and at how many tokens it has none.

    Its weight π_old/μ is then 1, as in training (`objective.loss.anchored`). Tokens outside ``mask`` are not counted.
    """
    key = _key(row, names)
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


def _mask(values: Sequence[float], where: str) -> array[int]:
    for place, value in enumerate(values, start=1):
        if value not in (0, 1):
            raise UserError(f"{where}: token {place}: {value:g} is neither 0 nor 1.")
    return array("b", [value != 0 for value in values])


def _check_segments(values: Sequence[float], mask: Sequence[float], where: str) -> None:
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


def _check_log_probs(values: Sequence[float], mask: Sequence[float], where: str) -> None:
    """UserError for the first token, of those in ``mask``, whose number cannot be the logarithm of a probability."""
    if min(values) >= LEAST_LOG_PROB and max(values) <= ROUNDING:
        return
    for place, (value, is_used) in enumerate(zip(values, mask, strict=True), start=1):
        if is_used and not LEAST_LOG_PROB <= value <= ROUNDING:
            raise UserError(
                f"{where}: token {place}: {value:g} cannot be a log-probability, which is at most 0 and not below "
                f"{LEAST_LOG_PROB:g}. Give natural logarithms of probabilities, not probabilities, logits or losses."
            )


def _number(value: Any, where: str) -> float:
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # an integer beyond all floats
        number = math.inf
    if not math.isfinite(number):
        raise UserError(f"{where}: {value!r} is no finite number.")
    if abs(number) > LARGEST:
        raise UserError(f"{where}: {number:g} is too large to compute with (at most {LARGEST:g}).")
    return number
