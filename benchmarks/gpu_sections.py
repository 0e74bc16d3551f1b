"""What gpu.py measures, a function for each section."""

from __future__ import annotations

import copy
import itertools
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import log_probs
from gpu_work import PEAK_TFLOPS, SHAPES, STEPS, Timed, model_of, needed_flops, synchronise, work_of
from policygrain.model import tiny
from policygrain.model.attention import Flex, Spans
from policygrain.model.engine import Request, Response
from policygrain.model.loading import recompute_layers
from policygrain.model.open_engine import open_engine
from policygrain.objective import method
from policygrain.train import checkpoint
from policygrain.train.policy import Policy
from policygrain.train.rollout_batch import prepare
from policygrain.train.rollouts import Rollouts
from policygrain.train.update import minibatches, update


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
            engine = open_engine(engine_name, folder, model, tokenizer, kv_gib=10, colocated=True)
        reference = copy.deepcopy(model)
        if checkpointing:
            recompute_layers(model)
        model.train()
        policy = Policy.of(model, tokenizer, reference, chosen, settings)
        rows, taken = [], 0
        for number in range(1 + STEPS):
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
            no_calls: list[list[list[float]]] = [[[]] * work.group for _ in prompts]
            accuracy = rewards.mean().item()
            rollouts = Rollouts(prompts, groups, rewards, rewards, no_calls, len(prompts), 0, accuracy, tokens)
            with clock("log_probs"):
                batch, _ = prepare(rollouts, policy, chosen, settings)
            with clock("update"):
                for part in minibatches(work.prompts, work.group, work.updates, seed=number):
                    update(policy, batch.rows(part), chosen, settings)
            if number == STEPS:
                with clock("checkpoint"):
                    checkpoint.save(Path(folder), number, policy.parts, {})
            rows.append(clock.seconds)
            taken = max(taken, clock.taken)
    seconds = {k: statistics.median(row[k] for row in rows[1:] if k in row) for k in rows[-1]}
    whole = sum(v for k, v in seconds.items() if k != "checkpoint")
    saved = seconds["checkpoint"] / settings.checkpoint_every
    report: dict[str, Any] = {"seconds": seconds, "step_seconds": whole}
    report["shares"] = {"checkpoint": saved / (whole + saved)}
    if engine is not None:
        report["shares"]["synchronise"] = seconds["synchronise"] / whole
    read = work.prompts * work.prompt_tokens + tokens
    report["tokens_per_second"] = {
        "log_probs": 1.25 * read / seconds["log_probs"],
        "update": read / seconds["update"],
        **({"generate": tokens / seconds["generate"]} if engine is not None else {}),
    }
    flops = 3 * needed_flops(SHAPES[shape], work)
    report["update_tflops"] = flops / seconds["update"] / 1e12
    if device == "cuda":
        report["device_memory_gib"] = taken / 2**30
        limit = next((v for name, v in PEAK_TFLOPS.items() if name in torch.cuda.get_device_name()), None)
        report["mfu"] = limit and report["update_tflops"] / limit
    return report


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
