"""Finding the records of judged models, and whether they may stand in one table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError, model_validator

from ..analysis.statistics import Scores
from ..errors import UserError

AGAIN = "Evaluate the model again."


class Record(BaseModel):
    """One benchmark's record of one model."""

    benchmark: str
    n: int
    problems: int
    accuracy: float
    per_problem: list[float]
    pass_at: dict[int, float]
    majority: float
    outcomes: dict[str, int]
    tokens: int
    truncated: float

    @model_validator(mode="after")
    def _complete(self) -> Record:
        if not self.per_problem or len(self.per_problem) != self.problems:
            raise ValueError(f"{len(self.per_problem)} scores for {self.problems} problems")
        return self


class StudyLine(Record):
    """A line of a study's evaluation/*.jsonl."""

    model: str
    key: str
    protocol_key: str


class RecordFile(BaseModel):
    """A records.json: one model under one protocol."""

    key: str
    protocol: dict[str, Any]
    facts: dict[str, Any] = {}
    records: list[Record]


@dataclass
class Judged:
    """A judged model; ``folder`` holds its samples (None: they were not kept)."""

    key: str
    seed: str
    folder: Path | None
    protocol: dict[str, Any]
    facts: dict[str, Any]
    records: dict[str, Record]


@dataclass
class Entry:
    """What has a row: one model, or an arm with a model per seed."""

    path: Path
    models: list[Judged]
    name: str = ""

    def records(self, benchmark: str) -> dict[str, Record]:
        """Seed → record, of the seeds judged on ``benchmark``."""
        return {m.seed: m.records[benchmark] for m in self.models if benchmark in m.records}

    def scores(self, benchmark: str, seeds: Sequence[str] | None = None) -> Scores:
        """Score per problem, [seeds, problems], of ``seeds`` (default: all)."""
        found = self.records(benchmark)
        rows = [found[seed].per_problem for seed in (seeds or found)]
        if len({len(row) for row in rows}) > 1:
            raise UserError(f"{self.name}: its seeds were judged on different problems of {benchmark}. {AGAIN}")
        return np.array(rows, dtype=float)


def find(paths: Iterable[Path]) -> list[Entry]:
    """What ``paths`` hold: run folders, evaluation folders, records.json files, results folders of studies."""
    entries: list[Entry] = []
    for path in paths:
        for entry in _find(path.resolve(), path):
            if any(entry.path == other.path for other in entries):
                raise UserError(f"{path}: {entry.path} is named twice.")
            entries.append(entry)
    for entry in entries:
        entry.name = _name(entry, entries)
    return entries


def benchmarks_of(entries: Iterable[Entry]) -> list[str]:
    """Names of all their benchmarks, in the order of the records."""
    return list(dict.fromkeys(name for e in entries for m in e.models for name in m.records))


def only(entries: Iterable[Entry], wanted: Sequence[str] | None) -> None:
    """Leave benchmarks that are not ``wanted`` out of records and protocols (None: all are wanted)."""
    if not wanted:
        return
    entries = list(entries)
    known = benchmarks_of(entries)
    for name in wanted:
        if name not in known:
            raise UserError(f"--benchmark: no record of {name!r} here. There are: {', '.join(known)}.")
    for model in (m for e in entries for m in e.models):
        model.records = {k: v for k, v in model.records.items() if k in wanted}
        settings = model.protocol.get("benchmarks", {})
        model.protocol = model.protocol | {"benchmarks": {k: v for k, v in settings.items() if k in wanted}}


def differences(entries: Sequence[Entry]) -> list[str]:
    """Where the protocols differ, a line each; the model does not count. Empty: they may stand in one table."""
    flat = [
        (entry.name, _flat({k: v for k, v in model.protocol.items() if k != "model"}))
        for entry in entries
        for model in entry.models
    ]
    lines = []
    for key in dict.fromkeys(key for _, values in flat for key in values):
        by_value: dict[str, list[str]] = {}
        for name, values in flat:
            names = by_value.setdefault(str(values.get(key, "(none)")), [])
            if name not in names:
                names.append(name)
        if len(by_value) > 1:
            lines.append(f"{key}: " + "; ".join(f"{value} in {_some(names)}" for value, names in by_value.items()))
    return lines


def same_protocol(entries: Sequence[Entry], anyway: bool) -> list[str]:
    """`differences`; UserError where there are any, unless ``anyway``."""
    found = differences(entries)
    if found and not anyway:
        more = [f"… and {len(found) - 12} more"] if len(found) > 12 else []
        lines = "".join(f"\n  {line}" for line in [*found[:12], *more])
        raise UserError(f"records of different protocols cannot stand in one table (--anyway: show them so).{lines}")
    return found


def _find(path: Path, given: Path) -> list[Entry]:
    if not path.exists():
        raise UserError(f"{given}: there is nothing here.")
    if path.is_file():
        if path.suffix != ".json":
            raise UserError(f"{given}: not a records.json; name that, or the folder of a run or of a study's results.")
        return [_one(path)]
    for records in (path / "records.json", path / "evaluation" / "records.json"):
        if records.exists():
            return [_one(records)]
    study = path.parent if path.name == "evaluation" and (path.parent / "runs").is_dir() else path
    entries = _study(study) if (study / "runs").is_dir() else []
    if not entries:
        raise UserError(
            f"{given}: no evaluation here. Name a run (results/STUDY/runs/ARM/seedS), its evaluation/ or records.json, "
            "or a study's results; what was trained and not judged has no records yet (`policygrain evaluate`)."
        )
    return entries


def _one(path: Path) -> Entry:
    folder = path.parent
    run = folder.parent if folder.name == "evaluation" else folder
    return Entry(run, [_judged(path, run.name.removeprefix("seed"))])


def _judged(path: Path, seed: str) -> Judged:
    file = parse(RecordFile, path.read_bytes(), str(path))
    if not file.records:
        raise UserError(f"{path}: holds no record. {AGAIN}")
    return Judged(file.key, seed, path.parent, file.protocol, file.facts, {r.benchmark: r for r in file.records})


def _study(results: Path) -> list[Entry]:
    """Arms of a study, in its order. The study's own lines decide; models that are not in them yet come after."""
    beside = {
        "/".join(path.parts[-4:-2]): path for path in sorted((results / "runs").glob("*/seed*/evaluation/records.json"))
    }
    lines: dict[str, list[StudyLine]] = {}
    for path in sorted((results / "evaluation").glob("*.jsonl")):
        for number, text in enumerate(path.read_bytes().splitlines(), start=1):
            line = parse(StudyLine, text, f"{path}, line {number}")
            lines.setdefault(line.model, []).append(line)
    judged = {name: _judged(path, name.rpartition("/seed")[2]) for name, path in beside.items()}
    protocols: dict[str, dict[str, Any]] = {}  # a line names its protocol by a key; a records.json spells it out
    for name, rows in lines.items():
        records: dict[str, Record] = {row.benchmark: row for row in rows}
        key, protocol_key = rows[0].key, rows[0].protocol_key
        if name in judged and judged[name].key == key:
            protocols[protocol_key] = judged[name].protocol
            judged[name].records = records
        else:
            judged[name] = Judged(key, name.rpartition("/seed")[2], None, {"key": protocol_key}, {}, records)
    arms: dict[str, list[Judged]] = {}
    for name in dict.fromkeys([*lines, *judged]):
        model = judged[name]
        if known := protocols.get(model.protocol.get("key", "")):
            model.protocol = {k: v for k, v in known.items() if k != "model"}
        arms.setdefault(name.rpartition("/seed")[0] or name, []).append(model)
    return [Entry(results / "runs" / arm, models) for arm, models in arms.items()]


Schema = TypeVar("Schema", bound=BaseModel)


def parse(schema: type[Schema], text: bytes, where: str) -> Schema:
    """``text`` as ``schema``; what is wrong with it is one message that begins with ``where``."""
    try:
        return schema.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{where}: {key + ': ' if key else ''}{first['msg']}. {AGAIN}") from error


def _name(entry: Entry, entries: Sequence[Entry]) -> str:
    """The end of its path, as long as it takes to be told from the others: `grpo/seed0`, `laptop/grpo/seed0`."""
    tails = {id(e): [p for p in e.path.parts if p not in ("runs", "evaluation")] for e in entries}
    own = tails.pop(id(entry))
    for length in range(2 if own[-1].startswith("seed") else 1, len(own)):
        if all(own[-length:] != tail[-length:] for tail in tails.values()):
            return "/".join(own[-length:])
    return str(entry.path)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
