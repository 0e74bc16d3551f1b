"""What a training step costs on a GPU: seconds by phase, tokens per second, MFU, memory; and TRL's step beside it.

Random weights in the shapes of Qwen2.5 0.5B and 1.5B, bfloat16, nothing downloaded. A step is 32 prompts of 64 tokens ×
8 responses of 256 (random weights do not end by themselves), 4 updates of some 17,000 packed tokens each. Sections:

- `step`: weights to the engine, sampling, log-probabilities (the policy's of all responses, the start model's of a
  quarter), updates, a checkpoint; a step with vLLM where it is installed, and one with the transformers engine;
- `update`: the same without sampling, with activation checkpointing;
- `attention`: forward and backward pass of one layer's attention over a packed row, as one kernel and as padded spans;
- `log_probs`: see log_probs.py, at 8,192 tokens;
- `trl`: a step of TRL's GRPOTrainer on the same work, where it is installed, sampling by vLLM and by transformers.

MFU counts the arithmetic that a step needs, 3 times a forward pass of every token read, the unembedding for response
tokens alone, nothing that is computed twice; over the dense bfloat16 peak of the GPU's data sheet. A section is a
process of its own with a time limit; one that fails leaves the end of its error text in its place. The first step is
not counted.

    python benchmarks/gpu.py [--out results/benchmarks/gpu.json]
    python benchmarks/gpu.py --device cpu --shape tiny      # on a CPU, in three minutes: whether all sections run
"""

from __future__ import annotations

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import copy
import importlib.util
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import log_probs
from policygrain.clock import Clock
from policygrain.files import atomic_json
from policygrain.methods import method
from policygrain.model import tiny
from policygrain.model.attention import Flex, Spans
from policygrain.model.loading import recompute_layers
from policygrain.plan.constants import read_constants
from policygrain.plan.cost import forward_flops
from policygrain.plan.shapes import Shape
from policygrain.provenance import commit, hardware, versions
from policygrain.rollout.engine import Request, Response
from policygrain.rollout.open import open_engine
from policygrain.study.schema import Training
from policygrain.train import checkpoint
from policygrain.train.rollouts import Rollouts
from policygrain.train.update import make_optimizer, minibatches, prepare, update


class Work(NamedTuple):
    prompts: int
    prompt_tokens: int
    group: int
    tokens: int
    updates: int = 4

    @property
    def settings(self) -> Training:
        return Training(
            prompts_per_step=self.prompts,
            group=self.group,
            updates_per_batch=self.updates,
            max_tokens=self.tokens,
            # An update is one forward pass.
            micro_batch_tokens=self.prompts // self.updates * (self.prompt_tokens + self.group * self.tokens),
            learning_rate=1e-6,
        )


SHAPES = {
    "0.5b": Shape(**read_constants().shapes["Qwen/Qwen2.5-0.5B"]),
    "1.5b": Shape(**read_constants().shapes["Qwen/Qwen2.5-1.5B"]),
    "tiny": Shape(64, 128, 2, 2, 1, 8192, tied=True),
}
FULL, SMALL = Work(32, 64, 8, 256), Work(4, 8, 4, 16)
PEAK_TFLOPS = {"H100": 989, "H200": 989, "A100": 312, "L40S": 362, "B200": 2250}  # dense bfloat16, data sheets
STEPS = 2  # counted ones
TOTAL_SECONDS, SECTION_SECONDS = 480, 150


def work_of(shape: str) -> Work:
    return SMALL if shape == "tiny" else FULL


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def model_of(shape: str, device: str) -> Qwen2ForCausalLM:
    sizes = SHAPES[shape]
    config = Qwen2Config(
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        vocab_size=sizes.vocabulary,
        max_position_embeddings=4096,
        rope_theta=1e6,
        tie_word_embeddings=sizes.tied,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    return model.to(torch.bfloat16 if device == "cuda" else torch.float32)


def needed_flops(shape: Shape, work: Work) -> float:
    """Of a forward pass over a step's texts; prompts need no logits."""
    texts = work.prompts, work.prompt_tokens, work.prompts * work.group, work.tokens
    return forward_flops(shape, *texts) - 2.0 * work.prompts * work.prompt_tokens * shape.hidden * shape.vocabulary


def step(shape: str, device: str, engine_name: str | None, checkpointing: bool) -> dict[str, Any]:
    """Steps of the trainer's own parts; without an engine responses are made up and sampling costs nothing."""
    work, settings, chosen = work_of(shape), work_of(shape).settings, method("grpo")
    model, tokenizer = model_of(shape, device), tiny.character_tokenizer()
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        engine = None
        if engine_name is not None:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            engine = open_engine(engine_name, folder, model, tokenizer, colocated=True)
        reference = copy.deepcopy(model)
        if checkpointing:
            recompute_layers(model)
        model.train()
        optimizer = make_optimizer(model, None, chosen, settings)
        rows = []
        for number in range(1 + STEPS):
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            clock = Timed(device)
            prompts = [[draw.randrange(3, 50) for _ in range(work.prompt_tokens)] for _ in range(work.prompts)]
            if engine is None:
                ids = [[draw.randrange(2, SHAPES[shape].vocabulary) for _ in range(work.tokens)] for _ in prompts]
                responses = [Response(i, False, [0.0] * work.tokens) for i in ids for _ in range(work.group)]
            else:
                with clock("synchronise"):
                    engine.load_weights(model)
                seeds = iter(range(10**6 * number, 10**6 * (number + 1)))
                wanted = [Request(p, next(seeds), work.tokens) for p in prompts for _ in range(work.group)]
                with clock("generate"):
                    responses = engine.generate(wanted)
                    engine.sleep()
            rewards = torch.tensor([[float(draw.random() < 0.5) for _ in range(work.group)] for _ in prompts])
            groups = [responses[i : i + work.group] for i in range(0, len(responses), work.group)]
            tokens = sum(len(r.ids) for r in responses)
            rollouts = Rollouts(prompts, groups, rewards, rewards, len(prompts), 0, rewards.mean().item(), tokens)
            with clock("log_probs"):
                batch, _ = prepare(rollouts, model, reference, chosen, settings, tokenizer.pad_token_id)
            with clock("update"):
                for part in minibatches(work.prompts, work.group, work.updates, seed=number):
                    update(model, optimizer, batch.rows(part), chosen, settings)
            if number == STEPS:
                with clock("checkpoint"):
                    checkpoint.save(Path(folder), number, {"model": model, "optimizer": optimizer}, {})
            rows.append(clock.seconds)
    seconds = {k: statistics.median(row[k] for row in rows[1:] if k in row) for k in rows[-1]}
    report: dict[str, Any] = {
        "seconds": seconds,
        "step_seconds": sum(v for k, v in seconds.items() if k != "checkpoint"),
    }
    read = work.prompts * work.prompt_tokens + tokens
    report["tokens_per_second"] = {
        "log_probs": 1.25 * read / seconds["log_probs"],
        "update": read / seconds["update"],
        **({"generate": tokens / seconds["generate"]} if engine is not None else {}),
    }
    flops = 3 * needed_flops(SHAPES[shape], work)
    report["update_tflops"] = flops / seconds["update"] / 1e12
    if device == "cuda":
        report["peak_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
        limit = next((v for name, v in PEAK_TFLOPS.items() if name in torch.cuda.get_device_name()), None)
        report["mfu"] = limit and report["update_tflops"] / limit
    return report


class Timed(Clock):
    """Waits for the GPU at the end of each phase."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __call__(self, phase: str) -> Any:
        synchronise(self.device)
        return super().__call__(phase)


def attention(shape: str, device: str) -> dict[str, Any]:
    """Milliseconds of one layer's attention over an update's row, forward and backward (on a CPU forward alone)."""
    work, sizes = work_of(shape), SHAPES[shape]
    prompts = work.prompts // work.updates
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(work.tokens // 4, work.tokens, (prompts * work.group,), generator=draw).to(device)
    owner = torch.arange(prompts, device=device).repeat_interleave(work.group)
    both = torch.full((prompts,), work.prompt_tokens, device=device), lengths, owner
    row, size = int(both[0].sum() + lengths.sum()), sizes.hidden // sizes.heads
    dtype, gradient = (torch.bfloat16, True) if device == "cuda" else (torch.float32, False)
    q, k, v = (
        torch.randn(1, heads, row, size, dtype=dtype, device=device, requires_grad=gradient)
        for heads in (sizes.heads, sizes.kv_heads, sizes.kv_heads)
    )
    report: dict[str, Any] = {"row": row}
    for name, kind in (("flex", Flex), ("spans", Spans)):
        made = []
        for _ in range(5):
            synchronise(device)
            begin = time.perf_counter()
            way = kind.of(*both)
            synchronise(device)
            made.append(time.perf_counter() - begin)
        seconds = []
        for _ in range(10):
            begin = time.perf_counter()
            out = way(q, k, v, size**-0.5)
            if gradient:
                out.sum().backward()
            synchronise(device)
            seconds.append(time.perf_counter() - begin)
        report[name] = {"ms": 1e3 * statistics.median(seconds), "preparation_ms": 1e3 * statistics.median(made)}
        report[name]["first_ms"] = 1e3 * seconds[0]
    return report


def trl_step(shape: str, device: str, with_vllm: bool) -> dict[str, Any]:
    """Seconds of a step of TRL's trainer on the same work, from the end of one to the end of the next."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    work = work_of(shape)
    tokenizer, draw = tiny.character_tokenizer(), random.Random(0)
    texts = ["".join(draw.choices("0123456789", k=work.prompt_tokens)) for _ in range((STEPS + 2) * work.prompts)]
    ends = []

    class Ends(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.global_step % work.updates == 0:
                synchronise(device)
                ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "start"
        model = model_of(shape, device)
        model.save_pretrained(start)
        tokenizer.save_pretrained(start)
        trainer = GRPOTrainer(
            model=str(start) if with_vllm else model,
            processing_class=tokenizer,
            reward_funcs=lambda completions, **_: [float(draw.random() < 0.5) for _ in completions],
            args=GRPOConfig(
                output_dir=folder,
                max_steps=(1 + STEPS) * work.updates,
                per_device_train_batch_size=work.prompts * work.group // work.updates,
                steps_per_generation=work.updates,
                num_generations=work.group,
                max_completion_length=work.tokens,
                temperature=1.0,
                beta=0.0,
                loss_type="grpo",
                learning_rate=1e-6,
                use_vllm=with_vllm,
                vllm_mode="colocate",
                vllm_gpu_memory_utilization=0.3,
                use_cpu=device == "cpu",
                bf16=device == "cuda",
                model_init_kwargs={"dtype": "bfloat16"} if with_vllm else None,
                gradient_checkpointing=False,
                save_strategy="no",
                report_to="none",
                logging_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list([{"prompt": text} for text in texts]),
            callbacks=[Ends()],
        )
        trainer.train()
    seconds = [b - a for a, b in itertools.pairwise(ends)]
    report: dict[str, Any] = {"step_seconds": statistics.median(seconds)}
    if device == "cuda":
        report["peak_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return report


def log_probs_section(shape: str, device: str) -> list[dict[str, Any]]:
    tokens, repeats = (256, 1) if shape == "tiny" else (8192, 20)
    vocabulary = SHAPES[shape].vocabulary
    return [log_probs.compare(task, tokens, vocabulary, device, 1, repeats) for task in log_probs.TASKS]


def sections(shapes: list[str], device: str) -> dict[str, Callable[[], Any]]:
    """What is measured, in the order of what matters most; only what is installed."""
    has_vllm, has_trl = (importlib.util.find_spec(name) is not None for name in ("vllm", "trl"))
    engines = ["vllm", "transformers"] if has_vllm else ["transformers"]
    plan: dict[str, Callable[[], Any]] = {}
    for shape in shapes:
        for engine in engines:
            plan[f"step {shape} {engine}"] = lambda s=shape, e=engine: step(s, device, e, False)
        plan[f"update {shape} checkpointing"] = lambda s=shape: step(s, device, None, True)
    first = shapes[0]
    plan["log_probs"] = lambda: log_probs_section(first, device)
    plan[f"attention {first}"] = lambda: attention(first, device)
    if has_trl:
        plan[f"trl {first} transformers"] = lambda: trl_step(first, device, False)
        if has_vllm and device == "cuda":
            plan[f"trl {first} vllm"] = lambda: trl_step(first, device, True)
    return plan


def in_own_process(name: str, limit: float) -> Any:
    """The section's result; where it fails, why."""
    command = [sys.executable, *sys.argv, "--section", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {limit:.0f} s"}
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": done.stderr.strip()[-2000:] or f"ended with {done.returncode}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--shape", nargs="+", default=["0.5b", "1.5b"], choices=list(SHAPES))
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    parser.add_argument("--section", help="this one alone, in this process")
    arguments = parser.parse_args()

    plan = sections(arguments.shape, arguments.device)
    if arguments.section:
        print(json.dumps(plan[arguments.section]()))
        return
    report: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "versions": versions(),
        "commit": commit(),
        "shapes": {name: asdict(SHAPES[name]) for name in arguments.shape},
        "work": work_of(arguments.shape[0])._asdict(),
        "sections": {},
    }
    end = time.monotonic() + TOTAL_SECONDS
    for name in plan:
        left = end - time.monotonic()
        begin = time.monotonic()
        found = in_own_process(name, min(left, SECTION_SECONDS)) if left > 5 else {"error": "no time was left"}
        report["sections"][name] = found
        print(f"{name} ({time.monotonic() - begin:.0f} s): {json.dumps(found)}", flush=True)
        if arguments.out:
            atomic_json(arguments.out, report)


if __name__ == "__main__":
    main()
