"""A training step of PolicyGrain beside one of TRL's GRPOTrainer: the same work, one CPU thread, float32.

A step is a batch of 16 prompts × 8 sampled responses (at most 112 tokens, temperature 1, nothing cut from the
distribution), exact-match rewards, the log-probabilities of the policy that sampled them, and 4 clipped AdamW updates
of 32 responses each. Both sides start from the same weights, see the same prompts in the same order, use the
same grader and compute log-probabilities of the old policy before the first update (TRL does so because a batch lasts
for several updates; the run fails if it did not; PolicyGrain leaves those of the first minibatch to its update). No KL
penalty, validation, logging or checkpoints on either side.
TRL samples with `generate` and its key-value cache; its options that could help are set, see `grpo_config`.

Two scenarios:

- `natural`: a briefly taught model ends its responses by itself. Both sides are put back to the start weights before
  each step (not timed), so lengths are of one distribution whatever the updates learn; what is sampled still differs
  by chance, so seconds per 1000 sampled tokens are reported too.
- `fixed`: the same model, with an end-of-sequence token that is never sampled. Every response has 112 tokens, so both
  do the same work to the token, and nothing is gained by dropping finished responses or sorting by length.

With `--model FOLDER` there is a third one, `pretrained`: that model on word problems and sums, 4 prompts × 8 responses
of at most 32 tokens, 4 updates. Both sides compute in bfloat16 where the processor does so in hardware, with weights
and AdamW in float32. The share of the processor's peak is that of 2 × parameters operations per token and pass over the
speed of a large matrix product of this precision, measured here.

PolicyGrain's step also scores a quarter of the batch under the frozen initial model, for its record; TRL's has no such
pass. Both sides live in one process and take turns, a round each, so that a busy machine slows both; the first step of
each is not counted. The ratio is TRL's seconds over PolicyGrain's.

    python benchmarks/training_step.py [--rounds 5] [--steps 3] [--model models/smollm2-135m-instruct] [--out FILE.json]

It needs `trl` (in the `dev` extra), about three minutes, and no network.
"""

from __future__ import annotations

import os

# Read when the libraries are loaded.
os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from common import parser_of, provenance, save
from policygrain.clock import Clock
from policygrain.data.families import FAMILIES, LEVELS, generate
from policygrain.data.problem import Problem
from policygrain.data.prompts import PromptRenderer
from policygrain.grading import Item, NumericGrader
from policygrain.model.device import compute_dtype, resolve_compute
from policygrain.model.loading import load_model
from policygrain.model.vllm_engine import open_engine
from policygrain.objective import method
from policygrain.provenance import seed_of
from policygrain.study import load_study
from policygrain.study.schema import Model, Prompt, TinyModel, Training, WarmStart
from policygrain.train.batch import make_batch, minibatches
from policygrain.train.policy import open_policy, update
from policygrain.train.rollouts import Collector, PromptStream
from policygrain.train.start_model import character_tokenizer, finetune, tiny_model

SEED = 0
WARM_UP = 1  # steps of each side that are not counted


class Work(NamedTuple):
    """A scenario: a model, its problems and settings."""

    start: str
    settings: Training
    prompt: Prompt
    problems: list[Problem]
    extraction: str = "boxed"


TINY = Training(
    prompts_per_step=16, group=8, updates_per_batch=4, max_tokens=112, temperature=1.0, learning_rate=2e-4, threads=1
)
PRETRAINED = TINY.model_copy(
    update={"prompts_per_step": 4, "max_tokens": 32, "temperature": 0.7, "learning_rate": 1e-5, "compute": "auto"}
)
STUDY = Path(__file__).parents[1] / "lab/research/studies/smollm2.yaml"  # whose prompt and extraction `pretrained` has


def works(folder: Path, pretrained: Path | None, only: str | None) -> dict[str, Work]:
    """The scenarios by name; ``only`` this one, if it is given."""
    found: dict[str, Work] = {}
    if only != "pretrained":
        problems = [p for family in FAMILIES for p in generate(family, "train", 200, SEED)]
        found = {name: Work(start, TINY, Prompt(), problems) for name, start in start_model(folder).items()}
    if pretrained is not None:
        words = [p for family in ("plain_sum", "word_problem") for p in generate(family, "train", 200, SEED)]
        study = load_study(STUDY)
        found["pretrained"] = Work(str(pretrained), PRETRAINED, study.prompt, words, study.extraction)
    return {name: work for name, work in found.items() if only in (None, name)}


def start_model(folder: Path) -> dict[str, str]:
    """Teach the laptop study's model for a while and save it, once for each scenario."""
    tokenizer = character_tokenizer()
    model, spec = tiny_model(TinyModel(), tokenizer, SEED), WarmStart(steps=250, mixed_steps=60)
    finetune(model, PromptRenderer(tokenizer, Prompt()), list(FAMILIES), list(LEVELS), spec, SEED)
    model.save_pretrained(folder / "natural")
    tokenizer.save_pretrained(folder / "natural")
    # An end of sequence beyond the model's vocabulary has no logit: neither side needs to be told to go on.
    tokenizer.add_special_tokens({"eos_token": "<|never|>"})
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    assert tokenizer.eos_token_id >= model.config.vocab_size
    model.save_pretrained(folder / "fixed")
    tokenizer.save_pretrained(folder / "fixed")
    return {name: str(folder / name) for name in ("natural", "fixed")}


class PolicyGrain:
    """What ``policygrain.train.loop`` does in a step, piece by piece."""

    def __init__(self, work: Work) -> None:
        self.work, self.method, self.phases = work, method("grpo"), Clock()
        self.policy = open_policy(work.start, Model(), self.method, work.settings, SEED)
        model, tokenizer = self.policy.model, self.policy.tokenizer
        assert self.policy.reference is not None
        self.start = {name: weight.clone() for name, weight in model.state_dict().items()}
        self.engine = open_engine("transformers", work.start, model, tokenizer, colocated=True)
        self.collector = Collector(
            PromptStream(work.problems, SEED),
            self.engine,
            NumericGrader(work.extraction),
            PromptRenderer(tokenizer, work.prompt),
            self.method.sampler,
            work.settings,
            SEED,
        )

    def step(self, number: int) -> dict[str, float]:
        """One step's seconds, sampled tokens and mean reward, from the start weights."""
        settings, clock = self.work.settings, Clock()
        self.policy.model.load_state_dict(self.start)
        begin = time.perf_counter()
        rollouts, counts = self.collector.collect(self.policy.model, 0, clock)
        cut = settings.prompts_per_step, settings.group, settings.updates_per_batch
        steps = minibatches(*cut, seed_of("minibatches", SEED, number))
        with clock("log_probs"):
            batch, metrics = make_batch(rollouts, self.policy, self.method, settings, current=steps[0].tolist())
        with clock("update"):
            for rows in steps:
                update(self.policy, batch.rows(rows), self.method, settings)
        seconds = time.perf_counter() - begin
        prompts = sum(len(rollout.prompt) for rollout in rollouts[:: settings.group])
        return {
            "seconds": seconds,
            "tokens": counts["sampled_tokens"],
            "reward": metrics["reward_mean"],
            "prompt_tokens": prompts,
            **{f"seconds_{name}": clock.seconds[name] for name in ("generate", "log_probs", "update")},
        }


def grpo_config(folder: str, steps: int, settings: Training) -> GRPOConfig:
    """TRL's settings for the same step, in the configuration that is fastest on a CPU."""
    return GRPOConfig(
        output_dir=folder,
        max_steps=steps * settings.updates_per_batch,
        # The work. Neither smaller passes that accumulate nor the static cache were faster here; continuous batching
        # was many times slower.
        per_device_train_batch_size=settings.prompts_per_step * settings.group // settings.updates_per_batch,
        gradient_accumulation_steps=1,
        steps_per_generation=settings.updates_per_batch,
        num_iterations=1,
        num_generations=settings.group,
        max_completion_length=settings.max_tokens,
        temperature=settings.temperature,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        loss_type="grpo",
        epsilon=0.2,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        shuffle_dataset=False,
        seed=SEED,
        # What makes it fast here, and nothing beside the work.
        use_cpu=True,
        bf16=resolve_compute(settings.compute) == torch.bfloat16,
        gradient_checkpointing=False,
        disable_dropout=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


class Turns(TrainerCallback):
    """Times TRL's steps from the end of one to the end of the next, and gives PolicyGrain its turn between rounds."""

    def __init__(self, ours: PolicyGrain, steps: int) -> None:
        self.ours, self.steps = ours, steps
        self.trainer: GRPOTrainer
        self.graded = {"tokens": 0, "reward": 0.0}
        self.rows: dict[str, list[dict[str, float]]] = {"trl": [], "policygrain": []}
        self.begin = 0.0

    def reward(
        self, completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any
    ) -> list[float]:
        """PolicyGrain's grader as a reward function of TRL's; what was sampled is counted by the way."""
        grader = self.ours.collector.grader
        rewards = [float(o == "correct") for o in grader.grade([*map(Item, answer, completions)])]
        self.graded = {"tokens": sum(map(len, completion_ids)), "reward": statistics.mean(rewards)}
        return rewards

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.begin = time.perf_counter()

    def on_step_end(self, args: GRPOConfig, state: Any, *_: Any, **__: Any) -> None:
        if state.global_step % args.steps_per_generation:
            return
        trl, ours = self.rows["trl"], self.rows["policygrain"]
        trl.append({"seconds": time.perf_counter() - self.begin, **self.graded})
        assert "old_per_token_logps" in self.trainer._buffered_inputs[0], "TRL left out the old log-probabilities"
        if len(trl) == WARM_UP or (len(trl) - WARM_UP) % self.steps == 0:
            ours.extend(self.ours.step(number) for number in range(len(ours), len(trl)))
        self.trainer.model.load_state_dict(self.ours.start)
        self.begin = time.perf_counter()


def compare(work: Work, folder: str, rounds: int, steps: int) -> dict[str, Any]:
    """Rounds of both sides in turn, and what they come to."""
    total = WARM_UP + rounds * steps
    turns = Turns(PolicyGrain(work), steps)
    # TRL's prompts in the order of PolicyGrain's stream.
    stream = PromptStream(work.problems, SEED).at(range(total * work.settings.prompts_per_step))
    renderer = turns.ours.collector.renderer
    model, tokenizer = load_model(work.start)
    turns.trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=turns.reward,
        args=grpo_config(folder, total, work.settings),
        train_dataset=Dataset.from_list([{"prompt": renderer.text(p.problem), "answer": p.answer} for p in stream]),
        callbacks=[turns],
    )
    turns.trainer.remove_callback(PrinterCallback)
    turns.trainer.train()
    assert torch.get_num_threads() == 1
    assert len(turns.rows["trl"]) == len(turns.rows["policygrain"]) == total

    table = []
    for first in range(WARM_UP, total, steps):
        row: dict[str, Any] = {}
        for side, rows in turns.rows.items():
            part = rows[first : first + steps]
            seconds, tokens = (sum(r[key] for r in part) for key in ("seconds", "tokens"))
            row[side] = {
                "seconds_per_step": seconds / steps,
                "tokens_per_step": tokens / steps,
                "seconds_per_1000_tokens": 1000 * seconds / tokens,
                "reward": statistics.mean(r["reward"] for r in part),
            }
        for key in ("seconds_per_step", "seconds_per_1000_tokens"):
            row[f"ratio_of_{key}"] = row["trl"][key] / row["policygrain"][key]
        table.append(row)
    ratios = {key: [row[key] for row in table] for key in table[0] if key.startswith("ratio")}
    summary = {k: {"median": statistics.median(v), "min": min(v), "max": max(v)} for k, v in ratios.items()}
    return {"rounds": table, **summary, "share_of_peak": share_of_peak(turns.ours, turns.rows["policygrain"][WARM_UP:])}


def share_of_peak(ours: PolicyGrain, rows: list[dict[str, float]]) -> dict[str, Any]:
    """PolicyGrain's share of the processor's peak, by phase: 2 × parameters operations per token and forward pass."""
    dtype = compute_dtype(ours.policy.model)
    peak = product_speed(dtype)
    each = 2 * sum(p.numel() for p in ours.policy.model.parameters())

    def total(key: str) -> float:
        return sum(row[key] for row in rows)

    tokens = total("tokens") + total("prompt_tokens")
    # A quarter of the batch is scored under the initial model, too. A backward pass is two forward passes.
    passes = {"generate": 1, "log_probs": 1.25, "update": 3}
    shares = {name: n * each * tokens / total(f"seconds_{name}") / peak for name, n in passes.items()}
    whole = sum(passes.values()) * each * tokens / total("seconds") / peak
    return {"dtype": str(dtype), "product_gflops": peak / 1e9, **shares, "step": whole}


def product_speed(dtype: torch.dtype, size: int = 2048) -> float:
    """Operations per second of a product of two square matrices, the best of five."""
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - begin)
    return 2 * size**3 / min(seconds)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--steps", type=int, default=3, help="steps in a turn")
    parser.add_argument("--model", type=Path, help="folder of a pretrained model: a third scenario")
    parser.add_argument("--only", choices=["natural", "fixed", "pretrained"], help="this scenario alone")
    arguments = parser.parse_args()
    if arguments.only == "pretrained" and arguments.model is None:
        parser.error("--only pretrained needs --model FOLDER (`make model-smollm2`)")

    torch.set_num_threads(1)
    report: dict[str, Any] = {
        **provenance(),
        "trl": version("trl"),
        "steps_per_round": arguments.steps,
        "scenarios": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, work in works(Path(folder), arguments.model, arguments.only).items():
            result = compare(work, f"{folder}/trl", arguments.rounds, arguments.steps)
            report["scenarios"][name] = {"settings": work.settings.model_dump(mode="json"), **result}
            print(f"\n{name}: seconds a step, sampled tokens a step, mean reward, ratio (TRL / PolicyGrain)")
            for row in result["rounds"]:
                for side in ("trl", "policygrain"):
                    r = row[side]
                    print(f"  {side:12}{r['seconds_per_step']:6.2f} s {r['tokens_per_step']:7.0f} {r['reward']:6.2f}")
                print(f"  ratio       {row['ratio_of_seconds_per_step']:6.2f}")
            for key in ("ratio_of_seconds_per_step", "ratio_of_seconds_per_1000_tokens"):
                r = result[key]
                print(f"{name}, {key}: median {r['median']:.2f}, {r['min']:.2f} to {r['max']:.2f}")
            print(f"{name}, share of the processor's peak: {result['share_of_peak']}")
    save(report, arguments.out)


if __name__ == "__main__":
    main()
