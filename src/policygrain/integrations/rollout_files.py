"""Responses of a user's own run: log-probabilities, rewards and groups, from JSON Lines or Parquet."""

from __future__ import annotations

import functools
import json
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
from ..progress import Progress
from .rollout_columns import (
    ADVANTAGE,
    GROUP,
    INTEGERS,
    MASK,
    OLD,
    PER_RESPONSE,
    PER_TOKEN,
    PROMPT,
    READ,
    REWARD,
    check_log_probs,
    check_segments,
    key_of,
    listed,
    mask_of,
    names_in,
    number_of,
    numbers_of,
    scored_row,
)

MOST_TOKENS = 10_000_000  # with log-probabilities and rewards alone: read in 0.6 GB, calibrated in 1.3 GB
LONG_FILE = 50_000  # lines from which progress is shown
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
        padded = values[(starts.unsqueeze(1) + place).where(inside, 0)]
        return padded.where(inside, torch.zeros((), dtype=values.dtype))

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
    `token_exports` can be read as it is. Where the mask is 0, numbers may be missing (null), and so may those of tokens
    that the engine could not score, beside the old policy's: they count as equal, as in training.
    """
    numbers = {name: array("d") for name in ("old_log_probs", "log_probs", "advantages", *PER_TOKEN)}
    by_response = {name: array("d") for name in ("group", *PER_RESPONSE)}
    masks, lengths, prompts, groups = array("b"), array("q"), list["array[int]"](), dict[str, int]()
    masked_rows, not_scored, kinds = 0, 0, set[tuple[str, ...]]()
    lines = sum(map(_count, _files(path)))
    for where, row in Progress(_rows(path), f"{path}, responses", lines, silent=lines < LONG_FILE):
        mask_key, old_key, group = key_of(row, MASK), key_of(row, OLD), key_of(row, GROUP)
        given_mask = None if mask_key is None else numbers_of(row, MASK, where)
        kinds.add(tuple(row))
        names_of = names_in(tuple(row))
        scored = row
        if "rollout_log_probs" in names_of and old_key is not None:
            scored, unknown = scored_row(row, names_of["rollout_log_probs"], old_key, given_mask)
            not_scored += unknown
        columns = {name: numbers_of(scored, names, where, given_mask) for name, names in names_of.items()}
        count, after = (len(columns[name]) for name in ("old_log_probs", "log_probs"))
        if count != after or not count:
            raise UserError(f"{where}: {count} old and {after} new log-probabilities; expected as many, at least one.")
        if given_mask is not None and len(given_mask) != count:
            raise UserError(f"{where}: {mask_key}: {len(given_mask)} entries for {count} tokens.")
        mask = array("b", [1]) * count if given_mask is None else mask_of(given_mask, f"{where}: {mask_key}")
        for name, values in columns.items():
            key = key_of(row, names_of[name])
            if len(values) != count:
                raise UserError(f"{where}: {key}: {len(values)} entries for {count} tokens.")
            if name.endswith("log_probs"):
                check_log_probs(values, mask, f"{where}: {key}")
            elif name == "segments":
                check_segments(values, mask, f"{where}: {key}")
        if not any(mask):
            masked_rows += 1
            continue
        if (advantages := _advantages(row, where, given_mask, count)) is not None:
            columns["advantages"] = advantages
        elif key_of(row, REWARD) is None or group is None:
            raise UserError(f"{where}: needs `advantage`, or `reward` and `group`; it has {listed(row)}.")
        for name, values in columns.items():
            numbers[name].extend(values)
        masks.extend(mask)
        lengths.append(count)
        if group is not None:
            by_response["group"].append(groups.setdefault(str(row[group]), len(groups)))
        for name, names in PER_RESPONSE.items():
            if (key := key_of(row, names)) is not None:
                by_response[name].append(number_of(row[key], f"{where}: {key}"))
                if name == "staleness" and by_response[name][-1] < 0:
                    raise UserError(f"{where}: {key}: {by_response[name][-1]:g} updates; expected 0 or more.")
        if key_of(row, PROMPT) is not None:
            prompts.append(array("q", map(int, numbers_of(row, PROMPT, where))))
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
    rows_with = {name: len(values) for name, values in by_response.items()} | {"prompt_ids": len(prompts)}
    tokens_with = {name: len(values) for name, values in numbers.items()}
    for counts, total, what in ((rows_with, len(lengths), "rows"), (tokens_with, len(masks), "tokens")):
        for name, number in counts.items():
            if 0 < number < total:
                raise UserError(f"{path}: {number:,} of {total:,} {what} have a value for {name}; all or none.")
    tokens, responses = (
        {
            name: torch.frombuffer(values, dtype=torch.float64).to(torch.int64 if name in INTEGERS else torch.float64)
            for name, values in arrays.items()
            if values
        }
        for arrays in (numbers, by_response)
    )
    tokens["mask"] = torch.frombuffer(masks, dtype=torch.int8) != 0
    notes = []
    if not_read := set().union(*kinds) - READ:
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
    if (key := key_of(row, ADVANTAGE)) is None:
        return None
    values = row if isinstance(row[key], list) else {key: [row[key]]}
    advantages = numbers_of(values, ADVANTAGE, where, mask)
    if len(advantages) not in (1, count):
        raise UserError(f"{where}: {key}: {len(advantages)} advantages for {count} tokens.")
    return advantages if len(advantages) == count else advantages * count


def _files(path: Path) -> list[Path]:
    """The file, or all JSON Lines and Parquet files in a folder and its folders."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix in (".jsonl", ".parquet"))
    if not files:
        raise UserError(f"{path}: no .jsonl or .parquet file in this folder.")
    return files


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(place, row without its nulls) of all files, one at a time."""
    for file in _files(path):
        for number, row in _parquet(file) if file.suffix == ".parquet" else _json_lines(file):
            yield f"{file}, {number}", {key: value for key, value in row.items() if value is not None}


def _count(file: Path) -> int:
    """Its lines; 0 if it is a pipe, which can be read only once."""
    if not file.is_file():
        return 0
    try:
        if file.suffix == ".parquet":
            return int(_opened(file).metadata.num_rows)
        with file.open("rb") as content:
            return sum(block.count(b"\n") for block in iter(lambda: content.read(1 << 20), b""))
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error}") from error


def _opened(file: Path) -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(f"{file}: Parquet needs pyarrow: pip install pyarrow, or give JSON Lines.") from error
    try:
        return parquet.ParquetFile(file)
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read as Parquet: {error}") from error


def _parquet(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    batches = _opened(file).iter_batches(batch_size=256)
    try:
        for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), start=1):
            yield f"row {number}", row
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read as Parquet: {error}") from error


def _json_lines(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"line {number}", _parsed(line, f"{file}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read: {error}") from error


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
