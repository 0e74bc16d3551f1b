"""The configuration's types. Every key of a study file is a field here; an unknown key is an error.

What a field's description says is what the reference in the documentation and the editor's hint say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from ..methods.schema import MethodChanges
from ..sections import Section

NonNegativeInt = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
# Of folders, files, MLflow's runs and words on a command line at once.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]


class TinyModel(Section):
    """Shape of a model that the pipeline builds itself (Qwen2 architecture, tied embeddings)."""

    hidden: PositiveInt = Field(64, description="hidden size")
    intermediate: PositiveInt = Field(128, description="size of the feed-forward layer")
    layers: PositiveInt = Field(3, description="transformer layers")
    heads: PositiveInt = Field(2, description="attention heads; hidden must be divisible by it")
    context: PositiveInt = Field(256, description="longest prompt and response together, in tokens")
    vocabulary: PositiveInt | None = Field(
        None, description="null: one token per character; a number: byte-level BPE of that size, trained on the prompts"
    )


class WarmStart(Section):
    """Supervised training of a tiny model by a tutor with two habits (synthetic families only)."""

    steps: NonNegativeInt = Field(700, description="optimizer steps; 0: weights stay random")
    mixed_steps: NonNegativeInt = Field(80, description="the last of them, in which the tutor also answers directly")
    batch_size: PositiveInt = Field(32, description="examples per step")
    learning_rate: PositiveFloat = Field(3e-3, description="peak, AdamW's; Muon's for the matrices is five times that")
    direct_share: Share = Field(0.6, description="share of the mixed examples answered directly, without a scratchpad")
    error_rate: Share = Field(0.02, description="probability that a step of the tutor's scratchpad goes wrong")


class Lora(Section):
    """Small matrices beside some of the model's, which alone are trained (needs the package peft)."""

    rank: PositiveInt = Field(16, description="inner size of the matrices")
    alpha: PositiveFloat = Field(32.0, description="their product is scaled by alpha / rank")
    targets: list[str] = Field(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        min_length=1,
        description="modules that get them, by the last part of their names",
    )


class Model(Section):
    """The start model."""

    start: str = Field(
        "tiny",
        description="'tiny': built and taught by the pipeline; else a folder or a Hugging Face name of a causal model",
    )
    revision: str | None = Field(None, description="pinned revision of a Hugging Face model")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="weights and arithmetic of the policy")
    lora: Lora | None = Field(None, description="null: all weights are trained")
    tiny: TinyModel = Field(TinyModel(), description="shape, for start: tiny")
    warm_start: WarmStart = Field(WarmStart(), description="supervised training, for start: tiny")
    warm_start_per_seed: bool = Field(
        True, description="true: each seed starts from a start model of its own; false: all from that of the first seed"
    )


class Prompt(Section):
    """How a problem is shown to the model, in training and in evaluation alike."""

    template: str = Field(
        "{problem}\n", description="text around the problem; {problem} stands for it", pattern=r"\{problem\}"
    )
    chat: bool = Field(False, description="wrap it in the tokenizer's chat template")
    system: str = Field("", description="system prompt, with chat: true")


class Data(Section):
    """Training and validation problems."""

    root: Path | None = Field(
        None,
        strict=False,
        description="folder of the files that sources name; null: POLICYGRAIN_DATA, else here",
    )
    train: list[str] = Field(
        min_length=1,
        description="sources of prompts: a family, a registered set (`policygrain data list`) or a .jsonl file",
    )
    train_size: PositiveInt = Field(3000, description="problems per family; at most so many of a set or file")
    validation_size: PositiveInt = Field(60, description="problems per source, held out of training and test")
    seed: int = Field(1, description="what synthetic problems are drawn from")


class Sampling(Section):
    """How responses are drawn in evaluation."""

    n: PositiveInt = Field(1, description="responses per problem; the score is their mean (avg@n)")
    temperature: float = Field(0.0, ge=0, description="0: greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus")
    max_tokens: PositiveInt = Field(128, description="longest response")


class Benchmark(Section):
    """One benchmark."""

    name: Name = Field(description="how figures and tables call it")
    source: str = Field(description="a family, a registered set (`policygrain data list`) or a .jsonl file")
    size: PositiveInt | None = Field(
        None, description="at most so many problems; null: 300 of a family, all of a registered set or file"
    )
    sampling: Sampling | None = Field(None, description="null: as `evaluation` says")


class Evaluation(Section):
    """The protocol by which final models are judged."""

    engine: Literal["auto", "vllm", "transformers"] = Field("auto", description="auto: vllm where it is installed")
    sampling: Sampling = Field(Sampling(), description="of every benchmark that does not say its own")
    registered_sampling: bool = Field(
        False,
        description="true: a registered benchmark that does not say its own has the n, temperature and top_p of its "
        "registry entry (`policygrain data list`), and max_tokens from here",
    )
    benchmarks: list[Benchmark] = Field(min_length=1, description="in the order of figures and tables")
    runs_per_engine: PositiveInt = Field(30, description="checkpoints judged one after the other by one engine process")
    parts: PositiveInt = Field(
        1, description="jobs that draw the responses of such a process's checkpoints between them; changes no result"
    )
    seed: int = Field(7, description="what sampling is seeded from")


class Fsdp(Section):
    """Weights, gradients and moments spread over the ranks of a run (PyTorch's FSDP2)."""

    compute: Literal["float32", "bfloat16", "float16"] = Field(
        "bfloat16", description="precision of forward and backward passes; gradients are added up in float32"
    )
    cpu_offload: bool = Field(False, description="in the host's memory; each layer is brought to the GPU for its pass")


# Keys that may be changed in the middle of a run.
RUNTIME_KEYS = (
    "micro_batch_tokens",
    "kv_gib",
    "activation_checkpointing",
    "threads",
    "checkpoint_every",
    "keep_every",
    "max_mismatch",
    "max_ratio",
)


class Training(Section):
    """The loop. A batch is prompts_per_step × group responses, trained on in updates_per_batch optimizer steps."""

    steps: PositiveInt = Field(30, description="batches sampled")
    prompts_per_step: PositiveInt = Field(16, description="prompts (groups) per batch")
    group: PositiveInt = Field(8, description="responses per prompt, G")
    updates_per_batch: PositiveInt = Field(4, description="optimizer steps per batch: more of them, further off-policy")
    learning_rate: PositiveFloat = Field(2e-4, description="AdamW's")
    warmup_updates: NonNegativeInt = Field(0, description="optimizer steps over which the learning rate rises linearly")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's")
    betas: tuple[float, float] = Field((0.9, 0.95), strict=False, description="AdamW's")
    max_grad_norm: PositiveFloat = Field(1.0, description="gradient norm is clipped to this")
    temperature: PositiveFloat = Field(
        1.0, description="of rollouts; log-probabilities and entropy are of this distribution"
    )
    max_tokens: PositiveInt = Field(112, description="longest response, L_max")
    micro_batch_tokens: PositiveInt = Field(
        2048, description="tokens per forward pass, padding included; changes no result"
    )
    engine: Literal["transformers", "vllm"] = Field("transformers", description="what samples rollouts")
    kv_gib: PositiveFloat | None = Field(
        None, description="GiB of vLLM's key-value cache; null: 1 on a CPU, half of what is free on a GPU"
    )
    max_mismatch: PositiveFloat | None = Field(
        None,
        description="nats by which trainer and engine may disagree on the mean sampled token; beyond it the run stops. "
        "null: 0.01 in float32, 0.1 in bfloat16",
    )
    ahead: NonNegativeInt = Field(
        0, description="batches sampled ahead: each is trained on so many steps later, off-policy; 0: at once"
    )
    validate_every: PositiveInt = Field(5, description="steps between validations")
    checkpoint_every: PositiveInt = Field(10, description="steps between checkpoints")
    keep_every: PositiveInt | None = Field(
        None, description="checkpoints of multiples of so many steps are kept for good; null: the newest two alone"
    )
    max_ratio: PositiveFloat | None = Field(
        None, description="a larger ratio ends the run, and its batch is kept; null: however large"
    )
    fsdp: Fsdp | None = Field(None, description="null: each rank of a run holds the whole model")
    activation_checkpointing: bool = Field(
        False, description="layers compute their activations again instead of keeping them"
    )
    threads: PositiveInt = Field(1, description="CPU threads of one run")

    def deciding(self) -> dict[str, Any]:
        """What a run's numbers hang on: how it is held, saved and watched decides no more than their rounding.

        Without what is the default anyway: a new key must not make a finished run another one.
        """
        return self.model_dump(exclude_defaults=True, exclude={*RUNTIME_KEYS, "fsdp"}) | (
            {"fsdp": self.fsdp.compute} if self.fsdp else {}
        )


class Experiment(Section):
    """Methods × settings × seeds that answer one question."""

    methods: list[str] = Field(min_length=1, description="presets or the study's own methods")
    seeds: list[NonNegativeInt] | None = Field(None, description="null: the study's")
    vary: dict[str, list[Any]] = Field(
        {}, description="training keys and their values, of one word each; every combination is run"
    )
    evaluate: bool = Field(True, description="judge the final models on the benchmarks, besides validation")


class Probe(Section):
    """One batch that every ratio looks at: how far ratios spread and how noisy gradients are, by grain."""

    prompts: PositiveInt = Field(24, description="prompts (groups) in the batch")
    updates: list[NonNegativeInt] = Field([1, 4, 16], description="optimizer steps that the policy is off the batch by")


class Tracking(Section):
    """MLflow, which mirrors the records."""

    uri: str | None = Field(None, description="null: MLFLOW_TRACKING_URI, else a SQLite store beside the results")
    log_models: bool = Field(
        False, description="log each run's final model, with a signature: MLflow loads and serves `runs:/RUN_ID/model`"
    )


class Study(Section):
    """A study file."""

    base: str | None = Field(None, description="another study file that this one is laid over, relative to this one")
    name: Name = Field(description="folder under results/ and experiment in MLflow")
    title: str = Field("", description="a line for reports")
    seeds: list[NonNegativeInt] = Field([0, 1, 2], min_length=1, description="of training, and of start models")
    seeds_per_process: PositiveInt = Field(
        1,
        description="runs of one arm that one process trains one after the other; more where starting it takes longest",
    )
    model: Model = Field(Model(), description="the start model")
    prompt: Prompt = Field(Prompt(), description="how problems are shown")
    data: Data = Field(description="training and validation problems")
    grader: Literal["numeric", "math"] = Field(
        "numeric",
        description="what judges answers, in training and evaluation: numbers exactly, or mathematics by math-verify",
    )
    training: Training = Field(Training(), description="the loop")
    methods: dict[Name, MethodChanges] = Field(
        {}, description="the study's own methods, each with the `base` that it changes, and changes to presets"
    )
    experiments: dict[str, Experiment] = Field(min_length=1, description="methods × settings × seeds, by question")
    evaluation: Evaluation = Field(description="how final models are judged")
    probe: Probe | None = Field(
        Probe(), description="every ratio on one batch, on one device, for `ratio_variance` and `grain`; null: none"
    )
    figures: list[str] = Field(["benchmarks", "dynamics", "clip_ratio", "stress"], description="what `figures` draws")
    tracking: Tracking = Field(Tracking(), description="MLflow")
