"""The registry of public problem sets: source, conversion of columns, protocol and notes of each.

Each set is a YAML file under ``datasets/``, with the name that studies use. A set without a verified source has
``home: null`` and cannot be fetched.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from .. import digests
from ..errors import UserError, did_you_mean
from ..study.sections import Section
from .convert import CONVERSIONS

if TYPE_CHECKING:
    from ..study.schema import Benchmark, Sampling, Study

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
GitId = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
RepositoryName = Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]


class GitHome(Section):
    """A file in a public Git repository, verified by its blob id, which is a hash of its content."""

    repository: RepositoryName = Field(description="OWNER/NAME on GitHub")
    commit: GitId = Field(description="commit of the repository")
    path: str = Field(description="path in the repository")
    blob: GitId = Field(description="the file's Git blob id (SHA-1 over its length and bytes)")


class HubHome(Section):
    """Files of a Hugging Face dataset at a pinned revision, concatenated."""

    dataset: RepositoryName = Field(description="OWNER/NAME on the Hugging Face hub")
    revision: GitId = Field(description="commit of the dataset repository")
    files: list[str] = Field(min_length=1, description="files in it, in the order of the rows")


class Column(Section):
    """The column of a source row that holds a text, and the conversions applied to it."""

    column: str | list[str] = Field(
        "", description="column; a.b.0 for nested values; of a list, the first one that exists"
    )
    form: str | None = Field(None, description="in place of `column`, str.format of the row's columns")
    convert: list[str] = Field([], description="conversions by name, in order")

    @model_validator(mode="after")
    def _one_of_both(self) -> Column:
        if bool(self.column) == bool(self.form):
            raise ValueError("give either `column` or `form`")
        return self


class Identity(Section):
    """Format of a problem's id, which is the same for every copy of the set."""

    form: str = Field(description="str.format of the groups of `match` ({0}, {1}, …) and of {row}, the source row")
    column: str | None = Field(None, description="column in which `match` is searched")
    match: str = Field("(.+)", description="regular expression")


class Fields(Section):
    """Conversion of source rows to problems."""

    id: Identity
    problem: Column
    answer: Column
    keep: list[str] = Field([], description="further columns to keep, under their own names")
    leave_out: list[int] = Field([], description="source rows that are not part of the set, counted from 0")
    checked: str = Field(min_length=1, description="how this mapping was checked against the source")


class Code(Section):
    """Tests of a set whose answers are programs."""

    tests: Column
    entry_point: Column = Field(description="the function that the tests call")
    match: str = Field("(.+)", description="regular expression that finds its name in that column")
    slow: dict[str, PositiveFloat] = Field({}, description="id → seconds of processor time, where a solution is slow")
    signature: Column | None = Field(None, description="code up to the function's body, which a completion continues")


class Answers(Section):
    """Comparison of answers."""

    relative_tolerance: PositiveFloat | None = Field(
        None, description="tolerance of numbers, relative to the gold answer"
    )
    absolute_tolerance: str | None = Field(None, description="column with the tolerance of a row, null for none")
    list_answer: str | None = Field(
        None, description="column that says whether a row's answer is a list, all of which is required"
    )
    text: list[str] = Field([], description="ids whose gold answer cannot be parsed and is compared as text")


class Protocol(Section):
    """Sampling parameters of responses."""

    n: PositiveInt = Field(description="responses per problem")
    temperature: float = Field(ge=0, description="0: greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus sampling")


class Dataset(Section):
    """A problem set."""

    name: str = Field(description="name of the file, and of the set in studies")
    title: str
    version: PositiveInt = Field(description="increases when problems, answers or protocol change")
    role: Literal["benchmark", "training"]
    home: GitHome | HubHome | None = Field(description="where it is fetched from; null: no pinned source is known")
    file: str = Field(description="name of its file in the folder of problem sets", pattern=r"^[\w.-]+\.jsonl$")
    aliases: list[str] = Field([], description="other names of that file")
    content: Digest | None = Field(description="digest of problems, answers and tests in order; null: not recorded")
    count: PositiveInt = Field(description="number of problems")
    fields: Fields
    answers: Answers = Answers()
    code: Code | None = Field(None, description="tests, for a set whose answers are programs")
    sampling: Protocol | None = Field(None, description="sampling parameters of a benchmark")
    metric: str = Field("", description="metric of a benchmark")
    prompt: str = Field("", description="what a prompt must ask for, so that answers are comparable")
    citation: str = Field(min_length=1, description="arXiv number or address")
    licence: str = Field(min_length=1)
    notes: list[str] = Field([], description="what to know before reporting results")
    changelog: list[str] = Field(min_length=1, description="`VERSION: what changed`, oldest first")

    @model_validator(mode="after")
    def _consistent(self) -> Dataset:
        of_code = (self.code.tests, self.code.entry_point) if self.code else ()
        for column in (self.fields.problem, self.fields.answer, *of_code):
            for name in column.convert:
                if name not in CONVERSIONS:
                    raise ValueError(f"no conversion is called {name!r}.{did_you_mean(name, CONVERSIONS)}")
        for answer_column in (self.answers.absolute_tolerance, self.answers.list_answer):
            if answer_column is not None and answer_column not in self.fields.keep:
                raise ValueError(f"answers: column {answer_column!r} is not kept; add it to fields.keep")
        if (self.role == "benchmark") != bool(self.sampling and self.metric):
            raise ValueError("a benchmark, and nothing else, has `sampling` and `metric`")
        if not self.changelog[-1].startswith(f"{self.version}:"):
            raise ValueError(f"changelog: the last entry must describe version {self.version}")
        return self


@cache
def names() -> tuple[str, ...]:
    """The names of all registered sets."""
    files = resources.files(__package__).joinpath("datasets").iterdir()
    return tuple(sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml")))


@cache
def dataset(name: str) -> Dataset:
    """The set called ``name``. UserError with similar names if there is none."""
    if name not in names():
        raise UserError(f"{name!r} is no registered problem set.{did_you_mean(name, names())}{how_to_read(name)}")
    text = resources.files(__package__).joinpath("datasets", f"{name}.yaml").read_text(encoding="utf-8")
    return parse(name, yaml.safe_load(text))


def how_to_read(name: str) -> str:
    """Advice for a file of problems that is not in JSON Lines; "" for other names."""
    if not name.endswith((".parquet", ".json", ".csv", ".tsv", ".arrow")):
        return ""
    return (
        " Files of your own are read as JSON Lines (.jsonl) with `problem` and `answer` in each line; with pandas: "
        "pandas.read_parquet(FILE).rename(columns={...}).to_json(OUT, orient='records', lines=True)."
    )


def parse(name: str, data: dict[str, Any]) -> Dataset:
    """Validate the content of a registry file. UserError that lists all wrong keys."""
    try:
        return Dataset.model_validate({"name": name, **data})
    except ValidationError as error:
        lines = "\n".join(f"  {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise UserError(f"problem set {name}: its registry file is invalid.\n{lines}") from error


def protocol(source: str) -> Protocol | None:
    """The registered sampling parameters of a benchmark; None for other sources."""
    return dataset(source).sampling if source in names() else None


def sharing_responses(study: Study) -> list[list[Benchmark]]:
    """The benchmarks, in groups with the same problems and sampling parameters, which share their responses."""
    groups: dict[str, list[Benchmark]] = {}
    for benchmark in study.evaluation.benchmarks:
        shared = {"source": benchmark.source, "size": benchmark.size, **sampling_of(study, benchmark).model_dump()}
        groups.setdefault(digests.of_json(shared), []).append(benchmark)
    return list(groups.values())


def sampling_of(study: Study, benchmark: Benchmark) -> Sampling:
    """Sampling parameters of responses to ``benchmark``.

    Its own `sampling` comes first, then its registry entry's if `evaluation.registered_sampling`, then the study's.
    """
    default = study.evaluation.sampling
    if benchmark.sampling is not None or not study.evaluation.registered_sampling:
        return benchmark.sampling or default
    registered = protocol(benchmark.source)
    return default.model_copy(update=registered.model_dump()) if registered else default
