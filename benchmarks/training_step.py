"""A training step of PolicyGrain beside one of TRL's GRPOTrainer: the same work, one CPU thread, float32.

A step is a batch of 16 prompts × 8 sampled responses (at most 112 tokens, temperature 1, nothing cut from the
distribution), exact-match rewards, the log-probabilities of the policy that sampled them, and 4 clipped AdamW updates
of 32 responses each. Both sides start from the same weights, see the same prompts in the same order, judge with the
same grader and compute log-probabilities of the old policy before the first update (TRL does so because a batch lasts
for several updates; the run fails if it did not). No KL penalty, validation, logging or checkpoints on either side.
TRL samples with `generate` and its key-value cache; its options that could help are set, see `grpo_config`.

Two scenarios:

- `natural`: a briefly taught model ends its responses by itself. Both sides are put back to the start weights before
  each step (not timed), so lengths are of one distribution whatever the updates learn; what is sampled still differs
  by chance, so seconds per 1000 sampled tokens are reported too.
- `fixed`: the same model, with an end-of-sequence token that it cannot draw. Every response has 112 tokens, so both do
  the same work to the token, and nothing is gained by dropping finished responses or sorting by length.

PolicyGrain's step also scores a quarter of the batch under the frozen start model, for its record; TRL's has no such
pass. Both sides live in one process and take turns, a round each, so that a busy machine slows both; the first step of
each is not counted. The ratio is TRL's seconds over PolicyGrain's.

    python benchmarks/training_step.py [--rounds 5] [--steps 3] [--out results/benchmarks/training_step.json]

It needs `trl` (in the `dev` extra), about three minutes, and no network.
"""

from __future__ import annotations

import os

# Read when the libraries are loaded.
os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import argparse
import statistics
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from policygrain.clock import Clock
from policygrain.files import atomic_json
from policygrain.grading import NumericGrader
from policygrain.methods import method
from policygrain.model import tiny
from policygrain.model.loading import load_model
from policygrain.model.warm_start import finetune
from policygrain.provenance import commit, hardware, seed_of, versions
from policygrain.rollout.open import open_engine
from policygrain.study.schema import Prompt, TinyModel, Training, WarmStart
from policygrain.tasks.families import FAMILIES, generate
from policygrain.tasks.problem import Problem
from policygrain.tasks.prompts import PromptRenderer
from policygrain.train.policy import Policy
from policygrain.train.rollouts import Collector, PromptStream
from policygrain.train.update import minibatches, prepare, update

SEED = 0
WARM_UP = 1  # steps of each side that are not counted
SETTINGS = Training(
    prompts_per_step=16, group=8, updates_per_batch=4, max_tokens=112, temperature=1.0, learning_rate=2e-4, threads=1
)
RESPONSES_PER_UPDATE = SETTINGS.prompts_per_step * SETTINGS.group // SETTINGS.updates_per_batch


def start_model(folder: Path) -> dict[str, str]:
    """Teach the laptop study's model for a while and save it, once for each scenario."""
    tokenizer = tiny.character_tokenizer()
    model = tiny.build(TinyModel(), tokenizer, SEED)
    finetune(model, PromptRenderer(tokenizer, Prompt()), list(FAMILIES), WarmStart(steps=250, mixed_steps=60), SEED)
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

    def __init__(self, start: str, problems: list[Problem]) -> None:
        (model, tokenizer), (self.reference, _) = load_model(start), load_model(start)
        self.method = method("grpo")
        self.policy = Policy.of(model, tokenizer, self.reference, self.method, SETTINGS)
        self.engine = open_engine("transformers", start, model, tokenizer)
        self.collector = Collector(
            PromptStream(problems, SEED),
            self.engine,
            NumericGrader(),
            PromptRenderer(tokenizer, Prompt()),
            self.method.sampler,
            SETTINGS,
            SEED,
        )

    def step(self, number: int) -> dict[str, float]:
        """One step's seconds, sampled tokens and mean reward, from the start weights."""
        self.policy.model.load_state_dict(self.reference.state_dict())
        begin = time.perf_counter()
        self.engine.load_weights(self.policy.model)
        rollouts = self.collector.collect(Clock())
        batch, metrics = prepare(rollouts, self.policy, self.method, SETTINGS)
        cut = SETTINGS.prompts_per_step, SETTINGS.group, SETTINGS.updates_per_batch
        for rows in minibatches(*cut, seed_of("minibatches", SEED, number)):
            update(self.policy, batch.rows(rows), self.method, SETTINGS)
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "tokens": rollouts.tokens, "reward": metrics["reward_mean"]}


def grpo_config(folder: str, steps: int) -> GRPOConfig:
    """TRL's settings for the same step, in the configuration that is fastest on a CPU."""
    return GRPOConfig(
        output_dir=folder,
        max_steps=steps * SETTINGS.updates_per_batch,
        # The work. Neither smaller passes that accumulate nor the static cache were faster here; continuous batching
        # was many times slower.
        per_device_train_batch_size=RESPONSES_PER_UPDATE,
        gradient_accumulation_steps=1,
        steps_per_generation=SETTINGS.updates_per_batch,
        num_iterations=1,
        num_generations=SETTINGS.group,
        max_completion_length=SETTINGS.max_tokens,
        temperature=SETTINGS.temperature,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        loss_type="grpo",
        epsilon=0.2,
        learning_rate=SETTINGS.learning_rate,
        lr_scheduler_type="constant",
        adam_beta1=SETTINGS.betas[0],
        adam_beta2=SETTINGS.betas[1],
        weight_decay=SETTINGS.weight_decay,
        max_grad_norm=SETTINGS.max_grad_norm,
        shuffle_dataset=False,
        seed=SEED,
        # What makes it fast here, and nothing beside the work.
        use_cpu=True,
        bf16=False,
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
        self.judged = {"tokens": 0, "reward": 0.0}
        self.rows: dict[str, list[dict[str, float]]] = {"trl": [], "policygrain": []}
        self.begin = 0.0

    def reward(
        self, completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any
    ) -> list[float]:
        """PolicyGrain's grader as a reward function of TRL's; what was sampled is counted by the way."""
        rewards = [float(o == "correct") for o in NumericGrader().grade(answer, completions)]
        self.judged = {"tokens": sum(map(len, completion_ids)), "reward": statistics.mean(rewards)}
        return rewards

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.begin = time.perf_counter()

    def on_step_end(self, args: GRPOConfig, state: Any, *_: Any, **__: Any) -> None:
        if state.global_step % args.steps_per_generation:
            return
        trl, ours = self.rows["trl"], self.rows["policygrain"]
        trl.append({"seconds": time.perf_counter() - self.begin, **self.judged})
        assert "old_per_token_logps" in self.trainer._buffered_inputs[0], "TRL left out the old log-probabilities"
        if len(trl) == WARM_UP or (len(trl) - WARM_UP) % self.steps == 0:
            ours.extend(self.ours.step(number) for number in range(len(ours), len(trl)))
        self.trainer.model.load_state_dict(self.ours.reference.state_dict())
        self.begin = time.perf_counter()


def compare(start: str, folder: str, problems: list[Problem], rounds: int, steps: int) -> dict[str, Any]:
    """Rounds of both sides in turn, and what they come to."""
    total = WARM_UP + rounds * steps
    turns = Turns(PolicyGrain(start, problems), steps)
    # TRL's prompts in the order in which PolicyGrain's stream draws them.
    drawn = [problem for _, problem in PromptStream(problems, SEED).draw(total * SETTINGS.prompts_per_step)]
    renderer = turns.ours.collector.renderer
    model, tokenizer = load_model(start)
    turns.trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=turns.reward,
        args=grpo_config(folder, total),
        train_dataset=Dataset.from_list([{"prompt": renderer.text(p.problem), "answer": p.answer} for p in drawn]),
        callbacks=[turns],
    )
    turns.trainer.remove_callback(PrinterCallback)
    turns.trainer.train()
    assert torch.get_num_threads() == 1
    assert len(turns.rows["trl"]) == len(turns.rows["policygrain"]) == total

    table = []
    for first in range(WARM_UP, total, steps):
        row = {}
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
    return {"rounds": table, **summary}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--steps", type=int, default=3, help="steps in a turn")
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    problems = [p for family in FAMILIES for p in generate(family, "train", 200, SEED)]
    report: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "versions": versions() | {"trl": version("trl")},
        "commit": commit(),
        "settings": SETTINGS.model_dump(mode="json"),
        "steps_per_round": arguments.steps,
        "scenarios": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, start in start_model(Path(folder)).items():
            result = compare(start, f"{folder}/trl", problems, arguments.rounds, arguments.steps)
            report["scenarios"][name] = result
            print(f"\n{name}: seconds a step, sampled tokens a step, mean reward, ratio (TRL / PolicyGrain)")
            for row in result["rounds"]:
                for side in ("trl", "policygrain"):
                    r = row[side]
                    print(f"  {side:12}{r['seconds_per_step']:6.2f} s {r['tokens_per_step']:7.0f} {r['reward']:6.2f}")
                print(f"  ratio       {row['ratio_of_seconds_per_step']:6.2f}")
            for key in ("ratio_of_seconds_per_step", "ratio_of_seconds_per_1000_tokens"):
                r = result[key]
                print(f"{name}, {key}: median {r['median']:.2f}, {r['min']:.2f} to {r['max']:.2f}")
    if arguments.out:
        atomic_json(arguments.out, report)


if __name__ == "__main__":
    main()
