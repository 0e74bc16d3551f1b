"""The keys of a study file and their types. An unknown key is an error.

The documentation and editors show the descriptions. Each key is one `of_` the results that depend on it directly (see
`dependencies.py`). Bounds exclude only values that are certainly mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    field_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from ..errors import did_you_mean
from ..objective import Method, method
from ..objective.method import resolved_methods

MOST = 1_000_000
T = TypeVar("T")

Artefact = Literal["training_data", "benchmarks", "start_model", "run", "evaluation", "figures", "tracking"]


class Section(BaseModel):
    """A mapping of the study file: no unknown keys, no silent conversion of values."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_known(cls, data: Any) -> Any:
        for key in data if isinstance(data, Mapping) else ():
            if key not in cls.model_fields:
                raise ValueError(f"{key}: unknown key.{did_you_mean(str(key), cls.model_fields)}")
        return data


def key(decides: Sequence[Artefact], default: Any, description: str, **bounds: Any) -> Any:
    """A key of a section with the artefacts that depend on it; ``default`` is ... for a required key."""
    return Field(default, description=description, json_schema_extra={"decides": list(decides)}, **bounds)


of_nothing = partial(key, ())  # memory, limits, checkpoints, division into jobs
of_data = partial(key, ("training_data",))
of_problems = partial(key, ("training_data", "benchmarks"))
of_benchmarks = partial(key, ("benchmarks", "evaluation"))
of_start = partial(key, ("start_model",))
of_run = partial(key, ("run",))
of_evaluation = partial(key, ("evaluation",))
of_policy = partial(key, ("run", "evaluation"))
of_every_model = partial(key, ("start_model", "run", "evaluation"))
of_figures = partial(key, ("figures",))


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key of a schema that is not a section, with its field: `training.steps`, `evaluation.benchmarks.name`."""
    for name, info in model.model_fields.items():
        if (section := section_of(info.annotation)) is None:
            yield f"{prefix}{name}", info
        else:
            yield from leaves(section, f"{prefix}{name}.")


def decides(info: FieldInfo) -> list[Artefact] | None:
    """The artefacts that depend on a key directly; None for a section."""
    extra = info.json_schema_extra
    return extra.get("decides") if isinstance(extra, dict) else None  # type: ignore[return-value]


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section type of a key, of its list items or of its mapping values; None for other keys."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(section_of, get_args(annotation))), None)


def distinct(values: Sequence[Any]) -> Sequence[Any]:
    for i, value in enumerate(values):
        if value in values[:i]:
            raise ValueError(f"{value!r} occurs twice")
    return values


def tracking_uri(value: str) -> str:
    """``value``; ValueError if it is not an address that MLflow supports, or has a password."""
    if re.search(r"://[^/\s]*@|[?&](?:password|token)=", value):
        raise ValueError(  # without the address, which has the password in it
            "contains a user name, password or token; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
        )
    if value == "databricks" or re.match(r"(https?|sqlite|postgresql|mysql|mssql|databricks)(\+\w+)?:\S+$", value):
        return value
    raise ValueError(f"{value!r} is not a tracking URI, such as http://HOST:5000 or sqlite:///FILE")


# A key with its own bound has a plain type, because pydantic would drop one of two bounds of a kind.
NonNegativeInt = Annotated[int, Field(ge=0, le=MOST)]
PositiveInt = Annotated[int, Field(ge=1, le=MOST)]
Level = Annotated[int, Field(ge=1, le=15)]
PositiveFloat = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Text = Annotated[str, Field(min_length=1)]
MetricName = Annotated[str, Field(pattern=r"^[\w./ :-]+$")]  # MLflow's characters
Template = Annotated[str, Field(pattern=r"\{problem\}")]
# Names are used for folders, files, MLflow runs and command-line arguments.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=64)]
Several = Annotated[list[T], Field(min_length=1, max_length=1000), AfterValidator(distinct)]

FigureName = Literal[
    "benchmarks",
    "dynamics",
    "clip_ratio",
    "entropy_regularisation",
    "importance_sampling",
    "convergence",
    "sweep",
    "pass_at_k",
]  # the entries of `figures/catalogue.py`
Extraction = Literal["boxed", "answer_line", "hashes", "answer_tag", "qwen_math"]


class TinyModel(Section):
    """The architecture of a tiny model that the pipeline builds (Qwen2 with tied embeddings)."""

    hidden: int = of_start(64, "hidden size", ge=1, le=8192)
    intermediate: int = of_start(128, "size of the feed-forward layers", ge=1, le=65_536)
    layers: int = of_start(3, "number of transformer layers", ge=1, le=128)
    heads: int = of_start(2, "attention heads; hidden size / heads must be a multiple of 32", ge=1, le=128)
    context: PositiveInt = of_start(256, "maximum length of a prompt with its response, in tokens")
    # At least 256 bytes, the end of a sequence, padding.
    vocabulary: int | None = of_start(
        None,
        "vocabulary size of a byte-level BPE, trained on the prompts; null: one token per character",
        ge=258,
        le=MOST,
    )

    @model_validator(mode="after")
    def _check_heads(self) -> TinyModel:
        if self.hidden % self.heads or self.hidden // self.heads % 32:
            raise ValueError(f"heads: the head size {self.hidden} / {self.heads} must be a multiple of 32, as for vLLM")
        return self


class WarmStart(Section):
    """Supervised fine-tuning of a tiny model on generated demonstrations (synthetic families only)."""

    steps: NonNegativeInt = of_start(700, "optimizer steps; 0: the weights stay random")
    mixed_steps: NonNegativeInt = of_start(80, "final steps in which some demonstrations have no scratchpad")
    batch_size: int = of_start(32, "demonstrations per optimizer step", ge=1, le=65_536)
    learning_rate: float = of_start(
        3e-3, "peak learning rate of AdamW; Muon, for weight matrices, has five times this", gt=0, le=1
    )
    direct_share: Share = of_start(0.6, "share of demonstrations without a scratchpad in the final mixed_steps steps")
    error_rate: Share = of_start(0.02, "probability that a scratchpad step contains a mistake")


class Sft(WarmStart):
    """Supervised fine-tuning of a pretrained model on generated demonstrations (synthetic families only)."""

    steps: int = of_start(140, "optimizer steps", ge=1, le=MOST)
    mixed_steps: NonNegativeInt = of_start(0, "final steps in which some demonstrations have no scratchpad")
    batch_size: int = of_start(64, "demonstrations per optimizer step", ge=1, le=65_536)
    learning_rate: float = of_start(2e-5, "peak learning rate of AdamW", gt=0, le=1)
    error_rate: Share = of_start(0.0, "probability that a scratchpad step contains a mistake")
    compute: Literal["auto", "float32", "bfloat16"] = of_start("auto", "precision as in `training.compute`")


class Lora(Section):
    """Low-rank adapters (LoRA); the model's own weights are frozen. Needs the package peft."""

    rank: int = of_run(16, "rank of the adapters", ge=1, le=8192)
    alpha: float = of_run(32.0, "the adapter output is scaled by alpha / rank", gt=0, le=10_000)
    targets: Several[Text] = of_run(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        "modules with an adapter, by the last part of their names",
    )


class Model(Section):
    """The model that training starts from."""

    start: Text = of_every_model(
        "tiny", "'tiny': made by the pipeline; else a folder or a Hugging Face name of a causal language model"
    )
    revision: Text | None = of_every_model(None, "commit, tag or branch of a Hugging Face model; null: main")
    dtype: Literal["float32", "bfloat16"] = of_run("float32", "data type of the policy's weights and computation")
    lora: Lora | None = Field(None, description="low-rank adapters; null: all weights are trained")
    tiny: TinyModel = Field(TinyModel(), description="architecture, with start: tiny")
    warm_start: WarmStart = Field(WarmStart(), description="supervised fine-tuning, with start: tiny")
    sft: Sft | None = Field(None, description="fine-tuning of a pretrained model before the runs; null: none")
    starts: int | None = of_policy(
        None,
        "number of initial models: with 6 the seeds 0 and 6 begin from the same; null: one per seed",
        ge=1,
        le=1000,
    )

    @property
    def is_made(self) -> bool:
        """Whether the pipeline makes initial models: tiny ones, or by fine-tuning a pretrained one."""
        return self.start == "tiny" or self.sft is not None


class Prompt(Section):
    """The prompt format, in training and in evaluation."""

    template: Template = of_every_model("{problem}\n", "prompt text; {problem} is replaced by the problem")
    program: Template = of_every_model(
        "{problem}\nAnswer with a Python program in a block that begins with ```python.\n",
        "the same for problems whose answer is a program (coding benchmarks)",
    )
    chat: bool = of_every_model(False, "apply the tokenizer's chat template")
    system: str = of_every_model("", "system prompt, with chat: true; in the problem if the template has no such role")
    chat_template_kwargs: dict[str, Any] = of_every_model(
        {}, "further arguments of the chat template, such as enable_thinking: false"
    )

    @model_validator(mode="after")
    def _check_system(self) -> Prompt:
        if self.system and not self.chat:
            raise ValueError("system: requires chat: true. Set that, or leave prompt.system out")
        return self


class Data(Section):
    """Training and validation problems."""

    root: Path | None = of_nothing(
        None, "folder that files are relative to; null: POLICYGRAIN_DATA, else the working directory", strict=False
    )
    train: Several[Text] = of_data(..., "synthetic families, registered sets (`policygrain data list`) or .jsonl files")
    train_size: PositiveInt = of_data(3000, "problems of a family; at most so many of a registered set or file")
    validation_size: PositiveInt = of_data(60, "validation problems per source, which are used nowhere else")
    seed: Seed = of_problems(1, "seed of the synthetic problems")
    levels: Several[Level] = of_problems(
        [1, 2, 3], "levels, 1 to 15, of synthetic problems, in turn; 15 has the longest solutions"
    )


class Sampling(Section):
    """Sampling parameters of evaluation."""

    n: int = of_evaluation(1, "responses per problem; the score is their mean accuracy (avg@n)", ge=1, le=100_000)
    temperature: float = of_evaluation(0.0, "sampling temperature; 0: greedy decoding", ge=0, le=10)
    top_p: float = of_evaluation(1.0, "nucleus sampling: mass of the tokens that are sampled from", gt=0, le=1)
    max_tokens: PositiveInt = of_evaluation(128, "maximum length of a response, in tokens")

    @model_validator(mode="after")
    def _several_differ(self) -> Sampling:
        if self.n > 1 and self.temperature == 0:
            raise ValueError("n: greedy responses to a problem are all the same; set a temperature")
        return self


class Benchmark(Section):
    """A benchmark."""

    name: Name = of_benchmarks(..., "name in figures and tables")
    source: Text = of_benchmarks(..., "a synthetic family, a registered set (`policygrain data list`) or a .jsonl file")
    size: PositiveInt | None = key(("benchmarks",), None, "maximum number of problems; null: all, of a family 300")
    extraction: Extraction | None = of_evaluation(None, "how the answer is extracted; null: as in the study")
    sampling: Sampling | None = Field(None, description="sampling parameters; null: those of `evaluation`")
    average: bool = key(("figures", "tracking"), True, "whether the average over the benchmarks counts it")


def distinct_names(benchmarks: list[Benchmark]) -> list[Benchmark]:
    """``benchmarks``; ValueError if two have the same name, or one has the reserved name `average`."""
    names = distinct([benchmark.name.lower() for benchmark in benchmarks])  # of files; some systems ignore case
    if "average" in names:
        raise ValueError("'average' is reserved for the mean of all benchmarks")
    return benchmarks


class Evaluation(Section):
    """The evaluation of initial and final models on benchmarks."""

    engine: Literal["auto", "vllm", "transformers"] = of_evaluation(
        "auto", "inference engine; auto: vllm if it is installed, else transformers"
    )
    sampling: Sampling = Field(Sampling(), description="sampling parameters of benchmarks that do not have their own")
    registered_sampling: bool = of_evaluation(
        False,
        "registered benchmarks without `sampling` of their own have that of `policygrain data list`",
    )
    benchmarks: Annotated[list[Benchmark], AfterValidator(distinct_names)] = Field(
        min_length=1, description="benchmarks, in the order of figures and tables"
    )
    greedy: bool = of_evaluation(False, "decode one more response per problem, greedily, for a table of its own")
    after_training: bool = of_evaluation(
        False, "evaluate in the process of training, with its engine: saves start-up time of tiny models"
    )
    seed: Seed = of_evaluation(7, "sampling seed")
    stop: list[Text] = of_evaluation([], "a response ends before the first of these, for base models that go on")


class Logs(Section):
    """The log of a command that trains."""

    file: Text = of_run(..., "file, or folder, that the command logs to, such as {out}/trainer_state.json")
    format: Literal["trl", "verl", "prime-rl", "jsonl", "csv"] = of_run(
        ..., "its format; trl: trainer_state.json, or the output folder with the checkpoints that have one"
    )
    step: Text | None = of_run(None, "the column of the step, if it has an unusual name")


class Training(Section):
    """Training: epochs × updates_per_batch optimizer steps per batch of prompts_per_step × group responses."""

    trainer: Literal["policygrain", "trl", "verl", "command"] = of_run(
        "policygrain",
        "trainer (docs/trainers.md): policygrain: the loop of this package, one process; trl: has its samples, and "
        "one or several processes; verl: does its own sampling; command: a script of your own",
    )
    command: Text | None = of_run(
        None,
        "with trainer: command, what trains a run, by bash in the working directory; names in braces, such as {seed}, "
        "{method}, {out} and {start}, are replaced (docs/your-script.md)",
    )
    logs: Logs | None = Field(None, description="with trainer: command, where it logs")
    metrics: dict[MetricName, Text] = of_run(
        {}, "with trainer: command, metric → its name in the log; validation_accuracy is needed, from 0 to 1"
    )
    model: Text | None = of_run(None, "with trainer: command, the folder of the final model; null: not evaluated")
    trl: dict[str, Any] = of_run(
        {}, "with trainer: trl, settings of its GRPOConfig for which a study has no key, such as fsdp or ddp_timeout"
    )
    verl: dict[str, Any] = of_run(
        {}, "with trainer: verl, settings of its ppo_trainer for which a study has no key, as nested mappings"
    )
    steps: PositiveInt = of_run(30, "training steps; each samples one batch")
    prompts_per_step: PositiveInt = of_run(16, "prompts per batch")
    group: int = of_run(8, "responses per prompt (group size G); a single one has no advantage", ge=2, le=100_000)
    updates_per_batch: PositiveInt = of_run(4, "minibatches in a pass over a batch, with an optimizer step each")
    epochs: PositiveInt = of_run(1, "passes over each batch, all with the same old log-probabilities")
    learning_rate: float = of_run(2e-4, "learning rate of AdamW; with 0 nothing is learned", ge=0, le=1)
    warmup_updates: NonNegativeInt = of_run(0, "optimizer steps of linear learning-rate warmup")
    weight_decay: float = of_run(0.0, "weight decay of AdamW", ge=0, le=10)
    betas: tuple[Beta, Beta] = of_run((0.9, 0.95), "betas of AdamW", strict=False)
    max_grad_norm: PositiveFloat = of_run(1.0, "maximum gradient norm; larger gradients are scaled down")
    temperature: float = of_run(1.0, "temperature of rollouts, log-probabilities and entropy", gt=0, le=10)
    max_tokens: PositiveInt = of_run(112, "maximum length of a response (L_max), in tokens")
    micro_batch_tokens: PositiveInt = of_nothing(
        2048, "maximum tokens of prompts and responses per forward pass; changes no result (but what Clip-Cov draws)"
    )
    engine: Literal["transformers", "vllm"] = of_run("transformers", "engine that samples rollouts")
    kv_gib: float | None = of_nothing(
        None,
        "vLLM's KV cache in GiB; null: on a CPU 1, on a GPU what a step needs, at most half of what the trainer leaves",
        gt=0,
        le=10_000,
    )
    max_mismatch: float | None = of_nothing(
        None,
        "mean difference of log-probabilities of trainer and engine, in nats per token, at which the run stops; "
        "null: 0.01 in float32, 0.1 in bfloat16",
        gt=0,
        le=10,
    )
    off_policy_steps: int = of_run(0, "age of rollouts: steps from sampling a batch to training on it", ge=0, le=1000)
    validate_every: PositiveInt = of_run(5, "number of steps between validations")
    checkpoint_every: PositiveInt = of_nothing(10, "number of steps between checkpoints")
    old_log_probs: Literal["trainer", "engine"] = of_run(
        "trainer",
        "log-probabilities of the old policy, in the denominator of ratios: trainer: its own; engine: those that the "
        "engine recorded; the trainer then scores a quarter of a batch, to compare both (`max_mismatch`), or all if a "
        "method reads entropies or prediction heads",
    )
    compute: Literal["float32", "bfloat16", "auto"] = of_run(
        "float32",
        "data type of the passes, and of the engine's weights in training; weights, summed gradients and AdamW keep "
        "`model.dtype`. auto: bfloat16 where the hardware computes it (on CPUs: AMX, AVX-512 BF16), else float32",
    )
    activation_checkpointing: bool = of_nothing(False, "recompute activations in the backward pass to save memory")
    threads: int = of_nothing(1, "CPU threads per run", ge=1, le=1024)

    @model_validator(mode="after")
    def _check_command(self) -> Training:
        read = {"command": self.command, "logs": self.logs, "metrics": self.metrics.get("validation_accuracy")}
        missing = [name for name, value in read.items() if value is None]
        if self.trainer == "command" and missing:
            what = "validation_accuracy with its name in the log" if missing[0] == "metrics" else "this key"
            raise ValueError(f"{missing[0]}: trainer: command needs {what} (docs/your-script.md)")
        if self.command is None and (alone := [name for name in ("logs", "metrics", "model") if getattr(self, name)]):
            raise ValueError(f"{alone[0]}: is read with trainer: command alone")
        return self

    @model_validator(mode="after")
    def _check_counts(self) -> Training:
        updates, responses = self.updates_per_batch, self.prompts_per_step * self.group
        if updates > responses:
            raise ValueError(f"updates_per_batch: {updates} updates, but a batch has only {responses} responses")
        if self.warmup_updates > (total := self.steps * self.updates_of_batch):
            raise ValueError(f"warmup_updates: {self.warmup_updates} is more than the {total} optimizer steps")
        if self.off_policy_steps >= self.steps:
            raise ValueError(f"off_policy_steps: {self.off_policy_steps} must be below training.steps ({self.steps})")
        return self

    @property
    def updates_of_batch(self) -> int:
        """Optimizer steps that are made with each batch, in all passes over it."""
        return self.epochs * self.updates_per_batch


class Experiment(Section):
    """A set of runs: methods × settings × seeds."""

    methods: Several[str] = of_figures(..., "names of presets or of methods defined under `methods`")
    seeds: Several[Seed] | None = of_figures(None, "seeds of the runs; null: the seeds of the study")
    vary: dict[str, Several[Any]] = of_figures(
        {}, "training keys with lists of values, numbers or words; every combination is run"
    )
    evaluate: bool = of_figures(True, "evaluate the final models on the benchmarks")
    reference: str | None = of_figures(
        None,
        "one of `methods`, with which each other one is compared at equal settings; they differ in one part, or in the "
        "ratio and its clip range (docs/statistics.md)",
    )
    compare: list[Annotated[tuple[str, str], Field(strict=False)]] = of_figures(
        [], "pairs of `methods` that are compared as well, the first minus the second"
    )
    margin: float | None = of_figures(
        None, "equivalence margin in points: a difference shown to be smaller is reported as such", gt=0, le=50
    )

    @model_validator(mode="after")
    def _check_compared(self) -> Experiment:
        for place, names in (("reference", filter(None, [self.reference])), ("compare", sum(self.compare, ()))):
            for name in names:
                if name not in self.methods:
                    raise ValueError(f"{place}: {name!r} is not one of `methods`.{did_you_mean(name, self.methods)}")
        return self

    @property
    def comparisons(self) -> list[tuple[str, str]]:
        """Pairs of methods that are compared, the first minus the second."""
        with_reference = [(name, self.reference) for name in self.methods if self.reference not in (None, name)]
        return [*with_reference, *self.compare]


class Tracking(Section):
    """Tracking: the records of a study are copied to MLflow."""

    uri: Annotated[str, AfterValidator(tracking_uri)] | None = key(
        ("tracking",),
        None,
        "such as http://HOST:5000 or sqlite:///FILE; null: MLFLOW_TRACKING_URI, else a SQLite file next to the study's "
        "results. User name and password belong in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
    )
    live: bool = of_nothing(True, "runs log themselves while they are trained; false: when all are done")


class Study(Section):
    """A study file."""

    base: str | None = of_nothing(None, "another study file, relative to this one, whose keys this one overrides")
    name: Name = of_figures(..., "name of the study: its folder under results/ and its experiment in MLflow")
    title: str = of_figures("", "title in reports")
    tuned_on: Annotated[list[Text], AfterValidator(distinct)] = of_nothing(
        [],
        "study files, relative to this one, that chose its settings; it must not use their problems, seeds or tiny "
        "initial models (docs/statistics.md, rule 4). A study that chooses settings and has this one as `base` sets []",
    )
    seeds: Several[Seed] = of_figures([0, 1, 2], "seeds of training runs and initial models")
    seeds_per_process: Literal[1, "all"] = of_nothing(1, "all: one process trains all seeds of an arm, one by one")
    model: Model = Field(Model(), description="the model that training starts from")
    prompt: Prompt = Field(Prompt(), description="prompt format")
    data: Data = Field(description="training and validation problems")
    grader: Literal["numeric", "math"] = of_policy(
        "numeric", "grader of answers: exact comparison of numbers, or math-verify"
    )
    extraction: Extraction = of_policy(
        "boxed",
        r"how the answer is extracted from a response: boxed: the last complete \boxed{…}; answer_line: the last line "
        "'Answer: …', as DAPO's reward; hashes: after ####; answer_tag: in <answer>…</answer>; qwen_math: as the "
        "evaluation code of Qwen2.5-Math, which the published tables used",
    )
    training: Training = Field(Training(), description="the training loop")
    methods: Annotated[
        dict[Name, InstanceOf[Method]],
        BeforeValidator(lambda given: resolved_methods(given) if isinstance(given, Mapping) else given),
    ] = of_run({}, "new methods, each with the method (`base`) that it changes, and changes to presets")
    experiments: dict[Name, Experiment] = Field(min_length=1, description="by name: methods × settings × seeds")
    evaluation: Evaluation = Field(description="evaluation on benchmarks")
    figures: Annotated[list[FigureName], AfterValidator(distinct)] = of_figures(
        ["benchmarks", "dynamics", "clip_ratio"], "figures to draw"
    )
    sweeps: dict[Text, Annotated[dict[str, float], Field(min_length=2)]] = of_figures(
        {}, "for the figure sweep: parameter, as it is named in the figure → evaluated method → its value"
    )
    tracking: Tracking = Field(Tracking(), description="tracking in MLflow")

    @field_serializer("methods")
    def _methods_as_data(self, methods: dict[str, Method]) -> dict[str, Any]:
        return {name: method.data() for name, method in methods.items()}

    @model_validator(mode="after")
    def _check_together(self) -> Study:
        if self.evaluation.after_training and self.training.engine == "vllm":
            raise ValueError("evaluation.after_training: requires training.engine: transformers")
        return self

    def method(self, name: str) -> Method:
        """A method of the study, or a preset. UserError for an unknown name."""
        return self.methods[name] if name in self.methods else method(name)
