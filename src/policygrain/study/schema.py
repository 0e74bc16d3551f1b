"""The keys of a study file, typed. An unknown key is an error.

Descriptions are what the documentation and editors show. Each key declares which results depend on it (`decides`, see
`fingerprint.py`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from ..methods.schema import MethodChanges
from ..sections import Section

NonNegativeInt = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
# Of folders, files, MLflow's runs and words on a command line at once.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]


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
    "stress",
    "grain",
]  # the modules of `figures/` that draw one
Artefact = Literal[
    "training_data", "benchmarks", "start_model", "run", "probe", "evaluation", "figures", "tracking"
]  # what a study makes


def _decides(*artefacts: Artefact) -> dict[str, Any]:
    """What depends directly on a key; what depends on that in turn is in `fingerprint.UPSTREAM`."""
    return {"decides": list(artefacts)}


NOTHING = _decides()  # memory, bounds, checkpoints, how jobs are cut
TRAINING_DATA = _decides("training_data")
BENCHMARKS = _decides("benchmarks")
ALL_DATA = _decides("training_data", "benchmarks")
START = _decides("start_model")
EVERY_MODEL = _decides("start_model", "run", "probe", "evaluation")
RUN = _decides("run")
POLICY = _decides("run", "probe")
POLICY_AND_EVALUATION = _decides("run", "probe", "evaluation")
PROBE = _decides("probe")
EVALUATION = _decides("evaluation")
BENCHMARKS_AND_EVALUATION = _decides("benchmarks", "evaluation")
FIGURES = _decides("figures")
TRACKING = _decides("tracking")


class TinyModel(Section):
    """Shape of a model that the pipeline builds itself (Qwen2 architecture, tied embeddings)."""

    hidden: PositiveInt = Field(64, description="hidden size", json_schema_extra=START)
    intermediate: PositiveInt = Field(128, description="size of the feed-forward layer", json_schema_extra=START)
    layers: PositiveInt = Field(3, description="transformer layers", json_schema_extra=START)
    heads: PositiveInt = Field(
        2, description="attention heads; hidden must be divisible by it", json_schema_extra=START
    )
    context: PositiveInt = Field(
        256, description="longest prompt and response together, in tokens", json_schema_extra=START
    )
    vocabulary: PositiveInt | None = Field(
        None,
        description="null: one token per character; a number: byte-level BPE of that size, trained on the prompts",
        json_schema_extra=START,
    )


class WarmStart(Section):
    """Supervised training of a tiny model by a tutor with two habits (synthetic families only)."""

    steps: NonNegativeInt = Field(700, description="optimizer steps; 0: weights stay random", json_schema_extra=START)
    mixed_steps: NonNegativeInt = Field(
        80, description="the last of them, in which the tutor also answers directly", json_schema_extra=START
    )
    batch_size: PositiveInt = Field(32, description="examples per step", json_schema_extra=START)
    learning_rate: PositiveFloat = Field(
        3e-3, description="peak, AdamW's; Muon's for the matrices is five times that", json_schema_extra=START
    )
    direct_share: Share = Field(
        0.6, description="share of the mixed examples answered directly, without a scratchpad", json_schema_extra=START
    )
    error_rate: Share = Field(
        0.02, description="probability that a step of the tutor's scratchpad goes wrong", json_schema_extra=START
    )


class Lora(Section):
    """Small matrices beside some of the model's, which alone are trained (needs the package peft)."""

    rank: PositiveInt = Field(16, description="inner size of the matrices", json_schema_extra=POLICY)
    alpha: PositiveFloat = Field(32.0, description="their product is scaled by alpha / rank", json_schema_extra=POLICY)
    targets: list[str] = Field(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        min_length=1,
        description="modules that get them, by the last part of their names",
        json_schema_extra=POLICY,
    )


class Model(Section):
    """The start model."""

    start: str = Field(
        "tiny",
        description="'tiny': built and taught by the pipeline; else a folder or a Hugging Face name of a causal model",
        json_schema_extra=EVERY_MODEL,
    )
    revision: str | None = Field(
        None, description="pinned revision of a Hugging Face model", json_schema_extra=EVERY_MODEL
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="weights and arithmetic of the policy", json_schema_extra=POLICY
    )
    lora: Lora | None = Field(None, description="null: all weights are trained")
    tiny: TinyModel = Field(TinyModel(), description="shape, for start: tiny")
    warm_start: WarmStart = Field(WarmStart(), description="supervised training, for start: tiny")
    warm_start_per_seed: bool = Field(
        True,
        description="true: each seed starts from a start model of its own; false: all from that of the first seed",
        json_schema_extra=POLICY_AND_EVALUATION,
    )


class Prompt(Section):
    """How a problem is shown to the model, in training and in evaluation alike."""

    template: str = Field(
        "{problem}\n",
        description="text around the problem; {problem} stands for it",
        pattern=r"\{problem\}",
        json_schema_extra=EVERY_MODEL,
    )
    chat: bool = Field(False, description="wrap it in the tokenizer's chat template", json_schema_extra=EVERY_MODEL)
    system: str = Field("", description="system prompt, with chat: true", json_schema_extra=EVERY_MODEL)


class Data(Section):
    """Training and validation problems."""

    root: Path | None = Field(
        None,
        strict=False,
        description="folder of the files that sources name; null: POLICYGRAIN_DATA, else here",
        json_schema_extra=NOTHING,
    )
    train: list[str] = Field(
        min_length=1,
        description="sources of prompts: a family, a registered set (`policygrain data list`) or a .jsonl file",
        json_schema_extra=TRAINING_DATA,
    )
    train_size: PositiveInt = Field(
        3000, description="problems per family; at most so many of a set or file", json_schema_extra=TRAINING_DATA
    )
    validation_size: PositiveInt = Field(
        60, description="problems per source, held out of training and test", json_schema_extra=TRAINING_DATA
    )
    seed: int = Field(1, description="what synthetic problems are drawn from", json_schema_extra=ALL_DATA)


class Sampling(Section):
    """How responses are drawn in evaluation."""

    n: PositiveInt = Field(
        1, description="responses per problem; the score is their mean (avg@n)", json_schema_extra=EVALUATION
    )
    temperature: float = Field(0.0, ge=0, description="0: greedy", json_schema_extra=EVALUATION)
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus", json_schema_extra=EVALUATION)
    max_tokens: PositiveInt = Field(128, description="longest response", json_schema_extra=EVALUATION)


class Benchmark(Section):
    """One benchmark."""

    name: Name = Field(description="how figures and tables call it", json_schema_extra=BENCHMARKS_AND_EVALUATION)
    source: str = Field(
        description="a family, a registered set (`policygrain data list`) or a .jsonl file",
        json_schema_extra=BENCHMARKS_AND_EVALUATION,
    )
    size: PositiveInt | None = Field(
        None,
        description="at most so many problems; null: 300 of a family, all of a registered set or file",
        json_schema_extra=BENCHMARKS,
    )
    sampling: Sampling | None = Field(None, description="null: as `evaluation` says")


class Evaluation(Section):
    """The protocol by which final models are judged."""

    engine: Literal["auto", "vllm", "transformers"] = Field(
        "auto", description="auto: vllm where it is installed", json_schema_extra=EVALUATION
    )
    sampling: Sampling = Field(Sampling(), description="of every benchmark that does not say its own")
    registered_sampling: bool = Field(
        False,
        description="true: a registered benchmark that does not say its own has the n, temperature and top_p of its "
        "registry entry (`policygrain data list`), and max_tokens from here",
        json_schema_extra=EVALUATION,
    )
    benchmarks: list[Benchmark] = Field(min_length=1, description="in the order of figures and tables")
    runs_per_engine: PositiveInt = Field(
        30, description="checkpoints judged one after the other by one engine process", json_schema_extra=NOTHING
    )
    parts: PositiveInt = Field(
        1,
        description="jobs that draw the responses of such a process's checkpoints between them; changes no result",
        json_schema_extra=NOTHING,
    )
    seed: int = Field(7, description="what sampling is seeded from", json_schema_extra=EVALUATION)


class Fsdp(Section):
    """Weights, gradients and moments spread over the ranks of a run (PyTorch's FSDP2)."""

    compute: Literal["float32", "bfloat16", "float16"] = Field(
        "bfloat16",
        description="precision of forward and backward passes; gradients are added up in float32",
        json_schema_extra=RUN,
    )
    cpu_offload: bool = Field(
        False,
        description="in the host's memory; each layer is brought to the GPU for its pass",
        json_schema_extra=NOTHING,
    )


class Training(Section):
    """The loop. A batch is prompts_per_step × group responses, trained on in updates_per_batch optimizer steps."""

    steps: PositiveInt = Field(30, description="batches sampled", json_schema_extra=RUN)
    prompts_per_step: PositiveInt = Field(16, description="prompts (groups) per batch", json_schema_extra=RUN)
    group: PositiveInt = Field(8, description="responses per prompt, G", json_schema_extra=POLICY)
    updates_per_batch: PositiveInt = Field(
        4, description="optimizer steps per batch: more of them, further off-policy", json_schema_extra=RUN
    )
    learning_rate: PositiveFloat = Field(2e-4, description="AdamW's", json_schema_extra=POLICY)
    warmup_updates: NonNegativeInt = Field(
        0, description="optimizer steps over which the learning rate rises linearly", json_schema_extra=RUN
    )
    weight_decay: float = Field(0.0, ge=0, description="AdamW's", json_schema_extra=POLICY)
    betas: tuple[float, float] = Field((0.9, 0.95), strict=False, description="AdamW's", json_schema_extra=POLICY)
    max_grad_norm: PositiveFloat = Field(1.0, description="gradient norm is clipped to this", json_schema_extra=POLICY)
    temperature: PositiveFloat = Field(
        1.0, description="of rollouts; log-probabilities and entropy are of this distribution", json_schema_extra=POLICY
    )
    max_tokens: PositiveInt = Field(112, description="longest response, L_max", json_schema_extra=POLICY)
    micro_batch_tokens: PositiveInt = Field(
        2048, description="tokens per forward pass, padding included; changes no result", json_schema_extra=NOTHING
    )
    engine: Literal["transformers", "vllm"] = Field(
        "transformers", description="what samples rollouts", json_schema_extra=POLICY
    )
    kv_gib: PositiveFloat | None = Field(
        None,
        description="GiB of vLLM's key-value cache; null: 1 on a CPU, half of what is free on a GPU",
        json_schema_extra=NOTHING,
    )
    max_mismatch: PositiveFloat | None = Field(
        None,
        description="nats by which trainer and engine may disagree on the mean sampled token; beyond it the run stops. "
        "null: 0.01 in float32, 0.1 in bfloat16",
        json_schema_extra=NOTHING,
    )
    ahead: NonNegativeInt = Field(
        0,
        description="batches sampled ahead: each is trained on so many steps later, off-policy; 0: at once",
        json_schema_extra=RUN,
    )
    validate_every: PositiveInt = Field(5, description="steps between validations", json_schema_extra=RUN)
    checkpoint_every: PositiveInt = Field(10, description="steps between checkpoints", json_schema_extra=NOTHING)
    keep_every: PositiveInt | None = Field(
        None,
        description="checkpoints of multiples of so many steps are kept for good; null: the newest two alone",
        json_schema_extra=NOTHING,
    )
    max_ratio: PositiveFloat | None = Field(
        None,
        description="a larger ratio ends the run, and its batch is kept; null: however large",
        json_schema_extra=NOTHING,
    )
    fsdp: Fsdp | None = Field(None, description="null: each rank of a run holds the whole model")
    activation_checkpointing: bool = Field(
        False, description="layers compute their activations again instead of keeping them", json_schema_extra=NOTHING
    )
    threads: PositiveInt = Field(1, description="CPU threads of one run", json_schema_extra=NOTHING)


class Experiment(Section):
    """Methods × settings × seeds that answer one question."""

    methods: list[str] = Field(
        min_length=1, description="presets or the study's own methods", json_schema_extra=FIGURES
    )
    seeds: list[NonNegativeInt] | None = Field(None, description="null: the study's", json_schema_extra=FIGURES)
    vary: dict[str, list[Any]] = Field(
        {},
        description="training keys and their values, of one word each; every combination is run",
        json_schema_extra=FIGURES,
    )
    evaluate: bool = Field(
        True, description="judge the final models on the benchmarks, besides validation", json_schema_extra=FIGURES
    )


class Probe(Section):
    """One batch that every ratio looks at: how far ratios spread and how noisy gradients are, by grain."""

    prompts: PositiveInt = Field(24, description="prompts (groups) in the batch", json_schema_extra=PROBE)
    updates: list[NonNegativeInt] = Field(
        [1, 4, 16], description="optimizer steps that the policy is off the batch by", json_schema_extra=PROBE
    )


class Tracking(Section):
    """MLflow, which mirrors the records."""

    uri: str | None = Field(
        None,
        description="null: MLFLOW_TRACKING_URI, else a SQLite store beside the results; user name and password belong "
        "into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
        json_schema_extra=TRACKING,
    )
    log_models: bool = Field(
        False,
        description="log each run's final model, with a signature: MLflow loads and serves `runs:/RUN_ID/model`",
        json_schema_extra=TRACKING,
    )

    @field_validator("uri")
    @classmethod
    def _without_password(cls, uri: str | None) -> str | None:
        if uri is not None and re.search(r"://[^/]*@", uri):
            raise ValueError("a study file is copied with its results: user name and password do not belong into it")
        return uri


class Study(Section):
    """A study file."""

    base: str | None = Field(
        None,
        description="another study file that this one is laid over, relative to this one",
        json_schema_extra=NOTHING,
    )
    name: Name = Field(description="folder under results/ and experiment in MLflow", json_schema_extra=FIGURES)
    title: str = Field("", description="a line for reports", json_schema_extra=FIGURES)
    seeds: list[NonNegativeInt] = Field(
        [0, 1, 2], min_length=1, description="of training, and of start models", json_schema_extra=FIGURES
    )
    seeds_per_process: PositiveInt = Field(
        1,
        description="runs of one arm that one process trains one after the other; more where starting it takes longest",
        json_schema_extra=NOTHING,
    )
    model: Model = Field(Model(), description="the start model")
    prompt: Prompt = Field(Prompt(), description="how problems are shown")
    data: Data = Field(description="training and validation problems")
    grader: Literal["numeric", "math"] = Field(
        "numeric",
        description="what judges answers, in training and evaluation: numbers exactly, or mathematics by math-verify",
        json_schema_extra=POLICY_AND_EVALUATION,
    )
    training: Training = Field(Training(), description="the loop")
    methods: dict[Name, MethodChanges] = Field(
        {},
        description="the study's own methods, each with the `base` that it changes, and changes to presets",
        json_schema_extra=RUN,
    )
    experiments: dict[str, Experiment] = Field(min_length=1, description="methods × settings × seeds, by question")
    evaluation: Evaluation = Field(description="how final models are judged")
    probe: Probe | None = Field(
        Probe(), description="every ratio on one batch, on one device, for `ratio_variance` and `grain`; null: none"
    )
    figures: list[FigureName] = Field(
        ["benchmarks", "dynamics", "clip_ratio", "stress"],
        description="what `figures` draws",
        json_schema_extra=FIGURES,
    )
    tracking: Tracking = Field(Tracking(), description="MLflow")
