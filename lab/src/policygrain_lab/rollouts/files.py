"""Responses of a user's own run: log-probabilities, rewards and groups, from JSON Lines or Parquet."""

from __future__ import annotations

import functools
import math
import reprlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from policygrain.errors import UserError
from policygrain.files import json_lines
from policygrain.objective.batch import TokenBatch
from policygrain.objective.part import Custom
from policygrain.objective.terms import Advantage, Grpo

MOST_TOKENS = 10_000_000  # with log-probabilities and rewards alone: read in 0.6 GB, calibrated in 1.3 GB
ROUNDING = 1e-3  # by which a computed log-probability may exceed 0
LEAST_LOG_PROB = -1e4
LARGEST = 1e100  # of other numbers: their squares are finite
ALL_0 = (
    "all advantages are 0: in every group all rewards are the same, so no token has a gradient and no clip "
    "range has an effect. Give rollouts in which some responses are right and others wrong."
)


class Column(NamedTuple):
    """A column of numbers: its names in trainers' dumps and loss functions, and which numbers are valid."""

    names: tuple[str, ...]
    per_token: bool = True  # False: one number per response
    is_integer: bool = False
    is_valid: Callable[[Tensor], Tensor] = lambda x: x.abs() <= LARGEST  # False for NaN
    problem: str = f"is not a finite number up to {LARGEST:g}"


_log_probs = functools.partial(
    Column,
    is_valid=lambda x: (x >= LEAST_LOG_PROB) & (x <= ROUNDING),
    problem=f"cannot be a log-probability, which is at most 0 and not below {LEAST_LOG_PROB:g}. Give natural "
    "logarithms of probabilities, not probabilities, logits or losses",
)
_integers = functools.partial(Column, is_integer=True, is_valid=lambda x: x % 1 == 0, problem="is not a whole number")
ENGINE = ("rollout_log_probs", "inference_logprobs", "sampling_per_token_logps")
# A column is in all rows or in none; only the mask may be missing, and is then 1.
COLUMNS = {
    "old_log_probs": _log_probs(
        ("old_log_probs", "old_log_prob", "old_per_token_logps", "inference_logprobs", "rollout_log_probs", "logprobs")
    ),
    "log_probs": _log_probs(("log_probs", "log_prob", "per_token_logps", "trainer_logprobs", "new_log_probs")),
    "mask": Column(
        ("mask", "response_mask", "completion_mask", "loss_mask"),
        is_valid=lambda x: (x == 0) | (x == 1),
        problem="is neither 0 nor 1",
    ),
    "advantages": Column(("advantage", "advantages")),  # of the response or of each token
    "rollout_log_probs": _log_probs(ENGINE),
    "ref_log_probs": _log_probs(("ref_log_probs", "ref_log_prob", "ref_per_token_logps", "ref_logprobs")),
    "entropy": Column(("entropy", "entropies")),
    "old_entropy": Column(("old_entropy", "old_entropies")),
    "ids": _integers(("completion_ids", "response_ids", "token_ids")),
    "group": _integers(("group", "group_id", "uid", "prompt_id", "problem_id"), per_token=False),
    "reward": Column(("reward", "rewards", "score", "acc"), per_token=False),
    "staleness": Column(
        ("staleness", "updates", "off_policy_steps"),
        per_token=False,
        is_valid=lambda x: (x >= 0) & (x <= LARGEST),
        problem="is not a number of updates; expected 0 or more",
    ),
    "step": Column(("step",), per_token=False),
    "top_p": Column(("top_p",), per_token=False),
}
PROMPTS = ("prompt_ids", "prompt_token_ids")
READ = {*PROMPTS}.union(*(column.names for column in COLUMNS.values()))


@dataclass(frozen=True)
class Rollouts:
    """Responses, one after another in the order of the file.

    ``tokens``: old_log_probs, log_probs, advantages, mask and the other columns per token that the rows have, each [all
    tokens]. ``responses``: the columns with one number per response, each [responses]. ``prompts``: token ids, or
    empty.
    """

    tokens: dict[str, Tensor]
    responses: dict[str, Tensor]
    lengths: Tensor  # [responses], in tokens, including those where the mask is 0
    prompts: list[array[int]]
    # Reward and group of responses whose mask is 0 everywhere.
    masked: tuple[Tensor, Tensor] = (torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    notes: tuple[str, ...] = ()  # what was left out of the file

    @functools.cached_property
    def batch(self) -> TokenBatch:
        """All responses."""
        return self.rows(torch.arange(len(self.lengths)))

    def rows(self, index: Tensor) -> TokenBatch:
        """The responses at ``index``, with all columns that TokenBatch has a field for."""
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
        padded = values[(starts.unsqueeze(1) + place).where(inside, 0)]
        return padded.where(inside, torch.zeros((), dtype=values.dtype))

    def group_rewards(self) -> tuple[Tensor, Tensor]:
        """Rewards and groups of the responses, then of those of the same groups whose tokens are all masked.

        Trainers leave the tokens of masked responses, such as truncated ones, out of the loss, but keep their rewards
        in the baseline.
        """
        reward, group = self.responses["reward"], self.responses["group"]
        inside = torch.isin(self.masked[1], group)
        return torch.cat([reward, self.masked[0][inside]]), torch.cat([group, self.masked[1][inside]])

    def each_token(self, values: Tensor) -> Tensor:
        """``values`` [responses] for each of their tokens. [all tokens]."""
        return values.repeat_interleave(self.lengths)


def group_advantages(advantage: Advantage | Custom, rewards: Tensor, groups: Tensor) -> Tensor:
    """Advantages of responses from their rewards and the numbers of their groups, of any sizes. All [responses]."""
    order = groups.argsort(stable=True)
    _, counts = groups.unique(return_counts=True)
    starts = counts.cumsum(0) - counts
    advantages = torch.zeros_like(rewards)
    for size in counts.unique().tolist():
        members = order[starts[counts == size].unsqueeze(1) + torch.arange(size)]
        advantages[members] = advantage(rewards[members])
    return advantages


def read_rollouts(path: Path) -> Rollouts:
    """Read a file of responses, or all files of a folder. UserError names the line and the key that are wrong.

    A row has the old and the new log-probabilities of its tokens, and either an advantage or a reward and a group. Rows
    may have a mask and the columns above. Column names of TRL, verl and prime-rl are understood; prime-rl's folder
    `token_exports` can be read as it is. Where the mask is 0, numbers may be missing (null). Where the engine could
    not score a token, its log-probability may be missing, and the old policy's is used in its place, as in training.
    """
    read = _Reader()
    for where, row in _rows(path, read.cut_off):
        read.add(row, where)
    if not read.lengths and read.n_masked:
        raise UserError(f"{path}: the mask is 0 everywhere in its {read.n_masked:,} responses, so no token is trained.")
    if not read.lengths:
        raise UserError(f"{path}: contains no response.")
    rollouts = read.rollouts()
    if "advantages" not in rollouts.tokens:
        rewards, groups = rollouts.group_rewards()
        alone = (groups.bincount() == 1).nonzero()
        if len(alone):
            raise UserError(
                f"{path}: group {list(read.groups)[int(alone[0])]!r} has one response; an advantage needs at least "
                "two, or give `advantage`."
            )
        advantages = group_advantages(Grpo(), rewards, groups)[: len(rollouts.lengths)]
        rollouts.tokens["advantages"] = rollouts.each_token(advantages)
    return rollouts


class _Reader:
    """Collects the columns of rows, then checks their values."""

    def __init__(self) -> None:
        self.columns: dict[str, array[float]] = {}
        self.prompts: list[array[int]] = []
        self.groups: dict[str, int] = {}  # name → number
        self.lengths, self.places = array("q"), list[str]()  # of each response
        self.n_masked = 0  # responses without a token in the loss, which are left out
        self.masked = array("d"), array("q")  # their rewards and groups
        self.names: set[str] = set()  # all names in the previous row
        self.keys: dict[str, str] = {}  # column → its name in the previous row
        self.not_read: set[str] = set()
        self.cut_off: list[str] = []  # notes on the ends of files

    def add(self, row: Mapping[str, Any], where: str) -> None:
        """Add a response. UserError if a value is not a number or a column has another length."""
        if row.keys() != self.names:
            self._set_keys(row, where)
        values = {name: _numbers(row, key, where) for name, key in self.keys.items() if name != "group"}
        count = len(values["old_log_probs"])
        mask = values.setdefault("mask", array("d", [1]) * count)
        if mask and not any(mask):
            self.n_masked += 1
            if (
                "group" in self.keys
                and len(set(reward := values.get("reward", array("d")))) == 1  # also one for each token
                and math.isfinite(reward[0])
            ):
                self.masked[0].append(reward[0])
                self.masked[1].append(self._group(row))
            return
        if len(rewards := values.get("reward", array("d"))) == count > 1:
            # prime-rl writes the reward of a response at each of its tokens.
            if len({reward for reward, kept in zip(rewards, mask, strict=False) if kept}) > 1:
                raise UserError(f"{where}: {self.keys['reward']}: different rewards of one response's tokens.")
            values["reward"] = array("d", [next(r for r, kept in zip(rewards, mask, strict=True) if kept)])
        prompt = values.pop("prompts", None)
        if prompt is not None:
            if not all(x.is_integer() for x in prompt):
                raise UserError(f"{where}: {self.keys['prompts']}: expected whole numbers.")
            self.prompts.append(array("q", map(int, prompt)))
        if "group" in self.keys:
            values["group"] = array("d", [self._group(row)])
        if len(values.get("advantages", ())) == 1:
            values["advantages"] *= count
        for name, column in values.items():
            expected = count if COLUMNS[name].per_token else 1
            if not column or len(column) != expected:
                raise UserError(
                    f"{where}: {self.keys[name]}: {len(column)} numbers; expected {expected or 'at least one'}."
                )
            self.columns[name].extend(column)
        self.lengths.append(count)
        self.places.append(where)
        if len(self.columns["mask"]) > MOST_TOKENS:
            raise UserError(
                f"{where}: more than {MOST_TOKENS:,} tokens up to here. Give the rollouts of fewer steps; those of one "
                "optimizer step are enough."
            )

    def _group(self, row: Mapping[str, Any]) -> int:
        """The number of the group of a row."""
        return self.groups.setdefault(str(row[self.keys["group"]]), len(self.groups))

    def _set_keys(self, row: Mapping[str, Any], where: str) -> None:
        """Find the columns of a row by their names. UserError if one is missing."""

        def first(names: Sequence[str]) -> str | None:
            return next((name for name in names if name in row), None)

        found = {name: first(column.names) for name, column in COLUMNS.items()} | {"prompts": first(PROMPTS)}
        # Log-probabilities of the engine are those of the old policy, or a column of their own beside them.
        found["rollout_log_probs"] = first([name for name in ENGINE if name != found["old_log_probs"]])
        keys = {name: key for name, key in found.items() if key is not None}
        for name in ("old_log_probs", "log_probs"):
            if name not in keys:
                raise UserError(f"{where}: needs one of {_listed(COLUMNS[name].names)}; it has {_listed(row)}.")
        if "advantages" not in keys and not {"reward", "group"} <= keys.keys():
            raise UserError(f"{where}: needs `advantage`, or `reward` and `group`; it has {_listed(row)}.")
        if not self.columns:
            self.columns = {name: array("d") for name in ("mask", *keys)}
        if differing := {"mask", *keys} ^ self.columns.keys():
            raise UserError(
                f"{where}: {', '.join(sorted(differing))}: in some rows only; give the column in all rows or in none."
            )
        self.keys, self.names = keys, {*row}
        self.not_read |= self.names - READ

    def rollouts(self) -> Rollouts:
        """All rows, checked, with the missing numbers filled in."""
        self.columns.pop("prompts", None)
        columns = {name: torch.frombuffer(values, dtype=torch.float64) for name, values in self.columns.items()}
        lengths = torch.frombuffer(self.lengths, dtype=torch.int64)
        ends, mask = lengths.cumsum(0), columns["mask"] != 0
        notes = [f"{note}." for note in self.cut_off]
        if self.not_read:
            notes.append(f"columns that are not read: {', '.join(sorted(self.not_read))}.")
        if "rollout_log_probs" in columns and (unknown := columns["rollout_log_probs"].isnan()).any():
            columns["rollout_log_probs"][unknown] = columns["old_log_probs"][unknown]
            notes.append(
                f"the engine could not score {int((unknown & mask).sum()):,} tokens (NaN, null); there it counts as "
                "equal to old_log_probs."
            )

        def refuse(name: str, wrong: Tensor, problem: str) -> None:
            """UserError that names the first of the ``wrong`` numbers, if there is any."""
            if not wrong.any():
                return
            place = int(wrong.nonzero()[0])
            row = int(torch.searchsorted(ends, place, right=True)) if COLUMNS[name].per_token else place
            token = f"token {place - int(ends[row] - lengths[row]) + 1}: " if COLUMNS[name].per_token else ""
            value = f"{float(columns[name][place]):g}"
            raise UserError(f"{self.places[row]}: {self.keys[name]}: {token}{value} {problem}.")

        for name, values in columns.items():
            column = COLUMNS[name]
            wrong = ~column.is_valid(values)
            if column.per_token and name != "mask":
                values[wrong & ~mask] = 0.0
                wrong &= mask
            refuse(name, wrong, column.problem)
        typed = {name: x.long() if COLUMNS[name].is_integer else x for name, x in columns.items()} | {"mask": mask}
        tokens = {name: x for name, x in typed.items() if COLUMNS[name].per_token}
        responses = {name: x for name, x in typed.items() if not COLUMNS[name].per_token}
        masked = (
            torch.tensor(self.masked[0], dtype=torch.float64),
            torch.tensor(self.masked[1], dtype=torch.int64),
        )
        return Rollouts(tokens, responses, lengths, self.prompts, masked, tuple(notes))


def _numbers(row: Mapping[str, Any], key: str, where: str) -> array[float]:
    """The list of numbers in a column, or its one number, as an array; null is NaN."""
    value = row[key]
    listed = value if isinstance(value, list) else [value]
    try:
        return array("d", [math.nan if x is None else x for x in listed] if None in listed else listed)
    except (TypeError, OverflowError) as error:
        raise UserError(f"{where}: {key}: {reprlib.repr(value)} is not a list of numbers ({error}).") from error


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _files(path: Path) -> list[Path]:
    """The file, or all JSON Lines and Parquet files in a folder and its folders."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix in (".jsonl", ".parquet"))
    if not files:
        raise UserError(f"{path}: no .jsonl or .parquet file in this folder.")
    return files


def _rows(path: Path, cut_off: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(place, row without its nulls) of all files, one at a time; notes on ends as in `json_lines`."""
    for file in _files(path):
        is_table = file.suffix == ".parquet"
        unit, rows = ("row", _parquet(file)) if is_table else ("line", json_lines(file, cut_off=cut_off))
        for number, row in rows:
            yield f"{file}, {unit} {number}", {key: value for key, value in row.items() if value is not None}


def _parquet(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    from pyarrow.parquet import ParquetFile

    try:
        batches = ParquetFile(file).iter_batches(batch_size=256)
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read as Parquet: {error}") from error
