"""The types of all records of a study, and functions that write, read and check them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .errors import UserError, explained
from .files import atomic_text, read_json

# Increased with every change after which older records cannot be read.
SCHEMA_VERSION = 2


class Entry(BaseModel):
    """A part of a record."""

    # JSON has no numbers for infinity and NaN; as text they are read back.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class Record(Entry):
    """A JSON file in the results."""

    schema_version: int = SCHEMA_VERSION


class Environment(Entry):
    """Software and hardware that produced a result."""

    versions: dict[str, str]
    commit: str  # with `+` at its end if the tree had changes; empty if it is not known
    hardware: str
    ranks: int = 1
    compute: str = "float32"  # precision of the passes of a training run
    engine: str = "policygrain"  # the trainer of a run: this package, or the engine of an imported run


class RunInputs(Entry):
    """Digests of the inputs of a run."""

    start_model: str
    train: str
    validation: str


class RunConfig(Record):
    """`run.json`: the run that a folder belongs to. ``key`` is the digest of arm, seed, settings and inputs."""

    key: str
    arm: str
    seed: int
    settings: dict[str, Any]  # settings that the result depends on, by key of the study file; without defaults
    method: dict[str, Any]
    training: dict[str, Any]
    inputs: RunInputs


class FinalMetrics(Entry):
    """The metrics of a run after its last step."""

    validation_accuracy: float
    validation_length: float
    steps: int
    updates: int
    tokens: int | None  # None: not known, of a run by a command
    samples: int | None
    seconds: float


class RunSummary(RunConfig):
    """`summary.json`: the record of a run that has ended."""

    final: FinalMetrics
    model_digest: str  # empty: the command that trained it wrote no model
    environment: Environment


class StartModelRecord(Record):
    """`start.json`: an initial model that the pipeline built."""

    seed: int
    settings: dict[str, Any]
    parameters: int
    steps: int
    seconds: float
    final_loss: float | None
    digest: str


class Contamination(Record):
    """`data/contamination.json`: pairs of a benchmark problem and the training prompt that contains it."""

    overlaps: dict[str, list[dict[str, Any]]]


class BenchmarkRecord(Entry):
    """Scores of one model on one benchmark."""

    benchmark: str
    n: int  # responses per problem
    problems: int
    accuracy: float
    per_problem: list[float]
    contaminated: list[int]  # positions of problems that are among the training prompts
    pass_at: dict[int, float]
    majority: float | None  # maj@n; None for programs, whose texts are not answers to vote on
    outcomes: dict[str, int]
    tokens: int
    truncated: float
    greedy: list[float] | None = None  # score of one greedily decoded response per problem; None: not evaluated

    @model_validator(mode="after")
    def _complete(self) -> BenchmarkRecord:
        if not self.per_problem or len(self.per_problem) != self.problems:
            raise ValueError(f"{len(self.per_problem)} scores for {self.problems} problems")
        return self


class EvaluationFacts(Entry):
    """Time, hardware and software of an evaluation."""

    seconds: dict[str, float]
    hardware: str
    versions: dict[str, str]
    commit: str | None = None  # as in `Environment`; None in records that are older than this entry


class ModelEvaluation(Record):
    """`evaluation/records.json`: the evaluation of one model with one protocol."""

    model: str  # ARM/seedS, start/seedS
    key: str  # of the protocol
    protocol: dict[str, Any]
    facts: EvaluationFacts
    records: list[BenchmarkRecord] = Field(min_length=1)


class EvaluatedArm(Record):
    """`evaluation/ARM.json`: the models of an arm, or the initial models, are evaluated."""

    settings: dict[str, Any]  # of the study that decide the evaluation; without defaults
    models: dict[str, str]  # name → key of its evaluation


class EvaluatedSample(NamedTuple):
    """A graded response: a row of `evaluation/samples.parquet`."""

    benchmark: str
    id: str  # of the problem
    sample: int
    greedy: bool  # decoded greedily, in addition to the sampled responses
    problem: str
    gold: str
    response: str
    answer: str | None  # extracted from the response; None if there is none, and of programs
    outcome: str
    tokens: int
    truncated: bool


class TrackingRecord(Record):
    """`mlflow.json`: the experiment and runs of the study in MLflow."""

    uri: str
    experiment: str
    runs: dict[str, str]  # name of a run → its id in MLflow


AnyRecord = TypeVar("AnyRecord", bound=Record)


def write_record(path: Path, record: Record) -> None:
    atomic_text(path, record.model_dump_json(indent=1) + "\n")


def read_record(kind: type[AnyRecord], path: Path, again: str) -> AnyRecord:
    """The record in ``path``. UserError names the file and the error, and ends with the remedy ``again``."""
    data = read_json(path, again)
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a JSON object, got {type(data).__name__}. {again}")
    if (version := data.get("schema_version", 1)) != SCHEMA_VERSION:
        schemas = f"record schema {version}, this one reads {SCHEMA_VERSION}"
        raise UserError(f"{path}: written by another version of policygrain ({schemas}). {again}")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{path}: {explained(error).splitlines()[0]} {again}") from error
