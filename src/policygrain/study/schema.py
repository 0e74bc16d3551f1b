"""The keys of a study file and their types. An unknown key is an error.

The documentation and editors show the descriptions. Each key declares which results depend on it (`decides`, see
`fingerprint.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from ..sections import Section
from .artefacts import (
    ALL_DATA,
    BENCHMARKS,
    BENCHMARKS_AND_EVALUATION,
    EVALUATION,
    EVERY_MODEL,
    FIGURES,
    NOTHING,
    POLICY,
    POLICY_AND_EVALUATION,
    RUN,
    RUN_MATRIX,
    START,
    TRACKING,
    TRAINING_DATA,
)
from .design import Controls, Estimators, Rounds
from .kinds import (
    MOST,
    Name,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    Several,
    Share,
    Text,
    distinct,
    tracking_uri,
)
from .methods import MethodChanges

FigureName = Literal[
    "benchmarks",
    "dynamics",
    "clip_ratio",
    "entropy_regularisation",
    "importance_sampling",
    "convergence",
    "block_size",
    "future_weight",
    "ratio_variance",
    "pass_at_k",
    "regimes",
    "ranges",
    "estimators",
    "rounds",
    "verdicts",
    "phase",
]  # the entries of `figures/catalogue.py`


class TinyModel(Section):
    """The architecture of a tiny model that the pipeline builds (Qwen2 with tied embeddings)."""

    hidden: int = Field(64, ge=1, le=8192, description="hidden size", json_schema_extra=START)
    intermediate: int = Field(
        128, ge=1, le=65_536, description="size of the feed-forward layers", json_schema_extra=START
    )
    layers: int = Field(3, ge=1, le=128, description="number of transformer layers", json_schema_extra=START)
    heads: int = Field(
        2,
        ge=1,
        le=128,
        description="number of attention heads; hidden size / heads must be a multiple of 32",
        json_schema_extra=START,
    )
    context: PositiveInt = Field(
        256, description="maximum length of a prompt with its response, in tokens", json_schema_extra=START
    )
    vocabulary: int | None = Field(
        None,
        ge=258,  # 256 bytes, the end of a sequence, padding
        le=MOST,
        description="vocabulary size of a byte-level BPE tokenizer, trained on the prompts; "
        "null: one token per character",
        json_schema_extra=START,
    )


class WarmStart(Section):
    """Supervised fine-tuning of a tiny model on generated demonstrations (synthetic families only)."""

    steps: NonNegativeInt = Field(
        700, description="optimizer steps; 0: the weights stay random", json_schema_extra=START
    )
    mixed_steps: NonNegativeInt = Field(
        80,
        description="number of final steps in which some demonstrations have no scratchpad",
        json_schema_extra=START,
    )
    batch_size: int = Field(
        32, ge=1, le=65_536, description="demonstrations per optimizer step", json_schema_extra=START
    )
    learning_rate: float = Field(
        3e-3,
        gt=0,
        le=1,
        description="peak learning rate of AdamW; for weight matrices Muon is used with five times this rate",
        json_schema_extra=START,
    )
    direct_share: Share = Field(
        0.6,
        description="share of demonstrations without a scratchpad in the final mixed_steps steps",
        json_schema_extra=START,
    )
    error_rate: Share = Field(
        0.02,
        description="error rate of a demonstration's step: probability that a scratchpad step contains a mistake",
        json_schema_extra=START,
    )


class Lora(Section):
    """Low-rank adapters (LoRA); the model's own weights are frozen. Needs the package peft."""

    rank: int = Field(16, ge=1, le=8192, description="rank of the adapters", json_schema_extra=POLICY)
    alpha: float = Field(
        32.0, gt=0, le=10_000, description="the adapter output is scaled by alpha / rank", json_schema_extra=POLICY
    )
    targets: Several[Text] = Field(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        description="modules with an adapter, by the last part of their names",
        json_schema_extra=POLICY,
    )


class Model(Section):
    """The model that training starts from."""

    start: Text = Field(
        "tiny",
        description="'tiny': built and fine-tuned by the pipeline; otherwise a folder or a Hugging Face name of a "
        "causal language model",
        json_schema_extra=EVERY_MODEL,
    )
    revision: Text | None = Field(
        None,
        description="revision (commit, tag or branch) of a Hugging Face model, whose commit is recorded; null: main",
        json_schema_extra=EVERY_MODEL,
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="data type of the policy's weights and computation", json_schema_extra=POLICY
    )
    lora: Lora | None = Field(None, description="low-rank adapters; null: all weights are trained")
    tiny: TinyModel = Field(TinyModel(), description="architecture, with start: tiny")
    warm_start: WarmStart = Field(WarmStart(), description="supervised fine-tuning, with start: tiny")
    starts: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="number of initial models: seeds take turns, so with 6 the seeds 0 and 6 begin from the same one; "
        "null: each seed has its own",
        json_schema_extra=POLICY_AND_EVALUATION,
    )


class Prompt(Section):
    """The prompt format, in training and in evaluation."""

    template: str = Field(
        "{problem}\n",
        description="prompt text; {problem} is replaced by the problem",
        pattern=r"\{problem\}",
        json_schema_extra=EVERY_MODEL,
    )
    program: str = Field(
        "{problem}\nAnswer with a Python program in a block that begins with ```python.\n",
        description="the same for problems whose answer is a program (coding benchmarks)",
        pattern=r"\{problem\}",
        json_schema_extra=EVERY_MODEL,
    )
    chat: bool = Field(False, description="apply the tokenizer's chat template", json_schema_extra=EVERY_MODEL)
    system: str = Field("", description="system prompt, with chat: true", json_schema_extra=EVERY_MODEL)


class Data(Section):
    """Training and validation problems."""

    root: Path | None = Field(
        None,
        strict=False,
        description="folder that file sources are relative to; null: POLICYGRAIN_DATA, else the working directory",
        json_schema_extra=NOTHING,
    )
    train: Several[Text] = Field(
        description="sources of training problems: synthetic families, registered sets (`policygrain data list`) or "
        ".jsonl files",
        json_schema_extra=TRAINING_DATA,
    )
    train_size: PositiveInt = Field(
        3000,
        description="number of problems per family; maximum number per registered set or file",
        json_schema_extra=TRAINING_DATA,
    )
    validation_size: PositiveInt = Field(
        60,
        description="validation problems per source; they are not in training or benchmarks",
        json_schema_extra=TRAINING_DATA,
    )
    seed: Seed = Field(1, description="seed of the synthetic problems", json_schema_extra=ALL_DATA)


class Sampling(Section):
    """Sampling parameters of evaluation."""

    n: int = Field(
        1,
        ge=1,
        le=100_000,
        description="responses per problem; the score is their mean accuracy (avg@n)",
        json_schema_extra=EVALUATION,
    )
    temperature: float = Field(
        0.0, ge=0, le=10, description="sampling temperature; 0: greedy decoding", json_schema_extra=EVALUATION
    )
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="nucleus sampling: probability mass of the tokens that are sampled from",
        json_schema_extra=EVALUATION,
    )
    max_tokens: PositiveInt = Field(
        128, description="maximum length of a response, in tokens", json_schema_extra=EVALUATION
    )

    @model_validator(mode="after")
    def _several_differ(self) -> Sampling:
        if self.n > 1 and self.temperature == 0:
            raise ValueError("n: several greedy responses are the same; set a temperature")
        return self


Extraction = Literal["boxed", "answer_line", "qwen_math"]


class Benchmark(Section):
    """A benchmark."""

    name: Name = Field(description="name in figures and tables", json_schema_extra=BENCHMARKS_AND_EVALUATION)
    source: Text = Field(
        description="a synthetic family, a registered set (`policygrain data list`) or a .jsonl file",
        json_schema_extra=BENCHMARKS_AND_EVALUATION,
    )
    size: PositiveInt | None = Field(
        None,
        description="maximum number of problems; null: 300 of a family, all of a registered set or file",
        json_schema_extra=BENCHMARKS,
    )
    extraction: Extraction | None = Field(
        None,
        description="how the answer is extracted from a response; null: as in the study. Benchmarks with the same "
        "source, size and sampling parameters share their responses, so two protocols can be reported side by side",
        json_schema_extra=EVALUATION,
    )
    sampling: Sampling | None = Field(None, description="sampling parameters; null: those of `evaluation`")


def distinct_names(benchmarks: list[Benchmark]) -> list[Benchmark]:
    """``benchmarks``; ValueError if two have the same name, or one that figures use."""
    distinct([benchmark.name.lower() for benchmark in benchmarks])  # a file each, and some file systems ignore case
    if any(benchmark.name.lower() == "average" for benchmark in benchmarks):
        raise ValueError("'average' is what tables call the mean of all benchmarks")
    return benchmarks


class Evaluation(Section):
    """The evaluation of start and final models on benchmarks."""

    engine: Literal["auto", "vllm", "transformers"] = Field(
        "auto",
        description="inference engine; auto: vllm if it is installed, otherwise transformers",
        json_schema_extra=EVALUATION,
    )
    sampling: Sampling = Field(Sampling(), description="sampling parameters of benchmarks that do not have their own")
    registered_sampling: bool = Field(
        False,
        description="true: registered benchmarks without their own sampling parameters use n, temperature and top_p "
        "from the registry (`policygrain data list`) and max_tokens from `evaluation.sampling`",
        json_schema_extra=EVALUATION,
    )
    benchmarks: Annotated[list[Benchmark], AfterValidator(distinct_names)] = Field(
        min_length=1, description="benchmarks, in the order of figures and tables"
    )
    greedy: bool = Field(
        False,
        description="besides the sampled responses, decode one greedily per problem; reported in a table of its own",
        json_schema_extra=EVALUATION,
    )
    after_training: bool = Field(
        False,
        description="evaluate a run's final model in the process that trained it, with the engine of training; saves "
        "start-up time for tiny models",
        json_schema_extra=EVALUATION,
    )
    runs_per_engine: PositiveInt = Field(
        30,
        description="models that one process evaluates one after the other, with the same engine",
        json_schema_extra=NOTHING,
    )
    parts: int = Field(
        1,
        ge=1,
        le=1000,
        description="number of jobs that share the sampling for these models; changes no result",
        json_schema_extra=NOTHING,
    )
    seed: Seed = Field(7, description="sampling seed", json_schema_extra=EVALUATION)


Beta = Annotated[float, Field(ge=0, lt=1)]


class Training(Section):
    """Training: epochs × updates_per_batch optimizer steps per batch of prompts_per_step × group responses."""

    trainer: Literal["policygrain", "trl", "verl"] = Field(
        "policygrain",
        description="what trains: policygrain is the loop of this package, one process per run; trl trains with the "
        "same samples on one or several processes; verl samples by itself. What each of them has: docs/training.md",
        json_schema_extra=RUN,
    )
    trl: dict[str, Any] = Field(
        {},
        description="settings of TRL's GRPOConfig with trainer: trl, such as fsdp or ddp_timeout; those that a "
        "study has keys for are refused",
        json_schema_extra=RUN,
    )
    verl: dict[str, Any] = Field(
        {},
        description="settings of verl's ppo_trainer with trainer: verl, such as trainer.n_gpus_per_node, as nested "
        "mappings; those that a study has keys for are refused",
        json_schema_extra=RUN,
    )
    steps: PositiveInt = Field(30, description="training steps; each samples one batch", json_schema_extra=RUN)
    prompts_per_step: PositiveInt = Field(16, description="prompts per batch", json_schema_extra=POLICY)
    group: int = Field(
        8,
        ge=2,
        le=100_000,
        description="responses per prompt (group size G); a single one has no advantage",
        json_schema_extra=POLICY,
    )
    updates_per_batch: PositiveInt = Field(
        4,
        description="minibatches, and optimizer steps, in a pass over a batch; with more of them, training is more "
        "off-policy",
        json_schema_extra=POLICY,
    )
    epochs: PositiveInt = Field(
        1,
        description="passes over each batch, all with the same old log-probabilities",
        json_schema_extra=POLICY,
    )
    learning_rate: float = Field(
        2e-4,
        ge=0,
        le=1,
        description="learning rate of AdamW; 0 as a control: nothing is learned",
        json_schema_extra=POLICY,
    )
    warmup_updates: NonNegativeInt = Field(
        0, description="optimizer steps of linear learning-rate warmup", json_schema_extra=POLICY
    )
    weight_decay: float = Field(0.0, ge=0, le=10, description="weight decay of AdamW", json_schema_extra=POLICY)
    betas: tuple[Beta, Beta] = Field((0.9, 0.95), strict=False, description="betas of AdamW", json_schema_extra=POLICY)
    max_grad_norm: PositiveFloat = Field(
        1.0, description="maximum gradient norm; larger gradients are scaled down", json_schema_extra=POLICY
    )
    temperature: float = Field(
        1.0,
        gt=0,
        le=10,
        description="sampling temperature of rollouts; also applied to log-probabilities and entropy",
        json_schema_extra=POLICY,
    )
    max_tokens: PositiveInt = Field(
        112,
        description="maximum length of a response (L_max), in tokens, tool output included",
        json_schema_extra=POLICY,
    )
    micro_batch_tokens: PositiveInt = Field(
        2048,
        description="maximum tokens per forward pass, including padding; changes no result",
        json_schema_extra=NOTHING,
    )
    engine: Literal["transformers", "vllm"] = Field(
        "transformers", description="engine that samples rollouts", json_schema_extra=POLICY
    )
    kv_gib: float | None = Field(
        None,
        gt=0,
        le=10_000,
        description="size of vLLM's KV cache in GiB; null: 1 on a CPU, half of the free memory on a GPU",
        json_schema_extra=NOTHING,
    )
    max_mismatch: float | None = Field(
        None,
        gt=0,
        le=10,
        description="the run stops if the log-probabilities of trainer and engine differ by more than this on average, "
        "in nats per token; null: 0.01 in float32, 0.02 in float16, 0.1 in bfloat16, and no limit with sampler_bits",
        json_schema_extra=NOTHING,
    )
    sampler_bits: int | None = Field(
        None,
        ge=2,
        le=8,
        description="training–inference mismatch on purpose: rollouts are sampled with weight matrices rounded to this "
        "many bits, while updates and validation have the exact ones; null: rollouts, too",
        json_schema_extra=RUN,
    )
    ahead: int = Field(
        0,
        ge=0,
        le=1000,
        description="batches sampled ahead; each is trained on this many steps after it was sampled, off-policy",
        json_schema_extra=RUN,
    )
    validate_every: PositiveInt = Field(5, description="number of steps between validations", json_schema_extra=RUN)
    checkpoint_every: PositiveInt = Field(
        10, description="number of steps between checkpoints", json_schema_extra=NOTHING
    )
    old_log_probs: Literal["trainer", "engine"] = Field(
        "trainer",
        description="where the log-probabilities of the old policy come from: computed by the trainer, or those that "
        "the engine sampled with, where a quarter of the batch agrees with the trainer's to 1e-4 nats",
        json_schema_extra=RUN,
    )
    sampling_seed: Seed = Field(
        0,
        description="another stream of prompts and samples with the same seed and initial model, for controls",
        json_schema_extra=RUN,
    )
    shuffle_rewards: bool = Field(
        False,
        description="as a control: rewards are permuted within each group, so there is nothing to learn",
        json_schema_extra=RUN,
    )
    keep_every: PositiveInt | None = Field(
        None,
        description="keep the checkpoints of every n-th step; of the others the newest two are kept until the run ends",
        json_schema_extra=NOTHING,
    )
    segment_ends: tuple[Text, ...] = Field(
        ("\n",),
        min_length=1,
        strict=False,
        description="texts that end a segment, for methods whose blocks are segments: a token that contains one is the "
        "last of its segment",
        json_schema_extra=POLICY,
    )
    max_ratio: float | None = Field(
        None,
        gt=1,
        description="stop the run and save the batch if a ratio is larger than this; null: no limit",
        json_schema_extra=NOTHING,
    )
    compute: Literal["float32", "bfloat16", "float16", "auto"] = Field(
        "float32",
        description="data type of the forward and backward passes, and of the engine's weights in training; weights, "
        "accumulated gradients and AdamW keep `model.dtype`. auto: bfloat16 where the GPU or CPU computes it in "
        "hardware (AMX, AVX-512 BF16), else float32; the summary of a run says which",
        json_schema_extra=RUN,
    )
    activation_checkpointing: bool = Field(
        False, description="recompute activations in the backward pass to save memory", json_schema_extra=NOTHING
    )
    threads: int = Field(1, ge=1, le=1024, description="CPU threads per run", json_schema_extra=NOTHING)

    @property
    def updates_of_batch(self) -> int:
        """Optimizer steps that are made with each batch, in all passes over it."""
        return self.epochs * self.updates_per_batch


class Experiment(Section):
    """A set of runs: methods × settings × seeds."""

    methods: Several[str] = Field(
        description="names of presets or of methods defined under `methods`", json_schema_extra=RUN_MATRIX
    )
    seeds: Several[Seed] | None = Field(
        None, description="seeds of the runs; null: the seeds of the study", json_schema_extra=RUN_MATRIX
    )
    vary: dict[str, Several[Any]] = Field(
        {},
        description="training keys, each with a list of values (numbers or single words); every combination is run",
        json_schema_extra=RUN_MATRIX,
    )
    evaluate: bool = Field(
        True, description="evaluate the final models on the benchmarks", json_schema_extra=RUN_MATRIX
    )
    reference: str | None = Field(
        None,
        description="one of `methods`, with which each other one is compared at equal settings; they differ in one "
        "part, or in the ratio and its clip range (docs/design.md)",
        json_schema_extra=FIGURES,
    )
    compare: list[Annotated[tuple[str, str], Field(strict=False)]] = Field(
        [],
        description="pairs of `methods` that are compared as well, the first minus the second",
        json_schema_extra=FIGURES,
    )
    margin: float | None = Field(
        None,
        gt=0,
        le=50,
        description="points of accuracy; a difference that is shown to be smaller than this is reported as such",
        json_schema_extra=FIGURES,
    )


class Tracking(Section):
    """Tracking: the records of a study are copied to MLflow."""

    uri: Annotated[str, AfterValidator(tracking_uri)] | None = Field(
        None,
        description="tracking URI, such as http://HOST:5000 or sqlite:///FILE; null: MLFLOW_TRACKING_URI, else a "
        "SQLite file next to the study's results. User "
        "name and password belong in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
        json_schema_extra=TRACKING,
    )
    live: bool = Field(
        True,
        description="log the steps of runs while they are trained, by a process beside Snakemake; "
        "false: when all are done",
        json_schema_extra=NOTHING,
    )
    log_models: bool = Field(
        False,
        description="log the final model of each run as `runs:/RUN_ID/model`, which MLflow can load and serve",
        json_schema_extra=TRACKING,
    )


class Study(Section):
    """A study file."""

    base: str | None = Field(
        None,
        description="another study file, relative to this one, whose keys this one overrides",
        json_schema_extra=NOTHING,
    )
    name: Name = Field(
        description="name of the study: its folder under results/ and its experiment in MLflow",
        json_schema_extra=FIGURES,
    )
    title: str = Field("", description="title in reports", json_schema_extra=FIGURES)
    tuned_on: Annotated[list[Text], AfterValidator(distinct)] = Field(
        [],
        description="study files, relative to this one, whose results chose settings of this study; "
        "problems, seeds and tiny initial models of them are refused here (docs/design.md, rule 4). A study that "
        "chooses settings and has this one as `base` sets []",
        json_schema_extra=NOTHING,
    )
    seeds: Several[Seed] = Field(
        [0, 1, 2], description="seeds of training runs and initial models", json_schema_extra=RUN_MATRIX
    )
    seeds_per_process: int = Field(
        1,
        ge=1,
        le=1000,
        description="runs of an arm, or initial models, that one process trains or measures in sequence; larger "
        "values save start-up time",
        json_schema_extra=NOTHING,
    )
    model: Model = Field(Model(), description="the model that training starts from")
    prompt: Prompt = Field(Prompt(), description="prompt format")
    data: Data = Field(description="training and validation problems")
    grader: Literal["numeric", "math"] = Field(
        "numeric",
        description="grader of answers, in training and evaluation: exact comparison of numbers, or math-verify",
        json_schema_extra=POLICY_AND_EVALUATION,
    )
    extraction: Extraction = Field(
        "boxed",
        description="how the answer is extracted from a response, in training and evaluation: boxed: the last complete "
        r"\boxed{…}; answer_line: the last line 'Answer: …', as DAPO's reward; qwen_math: as the evaluation code of "
        "Qwen2.5-Math, which the published tables used",
        json_schema_extra=POLICY_AND_EVALUATION,
    )
    training: Training = Field(Training(), description="the training loop")
    methods: dict[Name, MethodChanges] = Field(
        {},
        description="new methods, each with the method (`base`) that it changes, and changes to presets",
        json_schema_extra=POLICY,
    )
    experiments: dict[Name, Experiment] = Field(
        min_length=1, description="experiments by name: methods × settings × seeds"
    )
    evaluation: Evaluation = Field(description="evaluation on benchmarks")
    estimators: Estimators | None = Field(
        None, description="quality of gradient estimators against the true gradient; null: not measured"
    )
    rounds: Rounds | None = Field(
        None, description="one round of updates by each method from the same rollouts; null: not measured"
    )
    controls: Controls | None = Field(
        None, description="runs whose outcome is known, which show whether the study can be trusted; null: none"
    )
    figures: Annotated[list[FigureName], AfterValidator(distinct)] = Field(
        ["benchmarks", "dynamics", "clip_ratio"],
        description="figures to draw",
        json_schema_extra=FIGURES,
    )
    tracking: Tracking = Field(Tracking(), description="tracking in MLflow")
