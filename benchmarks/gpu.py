"""A training step on a GPU beside TRL's GRPOTrainer: seconds, tokens per second, MFU, memory.

Random weights in the shape of Qwen2.5-1.5B in float32, passes in bfloat16, vLLM in the trainer's process on both sides;
nothing is downloaded. A step is 32 prompts × 8 responses and 4 updates. Ours is `train.loop.Trainer` with all that it
does in a run (decoding, grading, records; a grader that tosses a coin, as TRL's reward function does); step time is
that between the ends of two steps, the first step is not counted. Rows:

- `equal`: prompts of 64 tokens, responses of 256, what padded batches like best; `natural`: geometric lengths with mean
  512, cut at 1,024; `long prompts`: 512 tokens, responses of 256;
- TRL as documented, and `tuned`: no detokenization, Liger's kernels, as many bytes of cache as ours;
- `parts`: log-probabilities and updates by kernels of layers, and without the fixed order of sums;
- `published`: an update in the shape of prime-rl's published case (Qwen3-0.6B, one row of 16,384 tokens, activation
  checkpointing; 11.9k tokens/s on one H100, PrimeIntellect-ai/prime-rl at 559b4477, benchmarks/baselines/
  benchmark-1xh100-Qwen--Qwen3-0.6B-rl-full-1gpu-Recompute-flash_attention_3-16384-cp1-ep1.json);
- `checkpoint`: ours with a checkpoint every 10 steps.

Each measurement is a process; sides alternate (A B B A A B), and a ratio is that of neighbours. Memory is the most that
`nvidia-smi` sees at 10 Hz. MFU counts the arithmetic that a step needs, 3 times a forward pass of every token read, the
unembedding for response tokens alone, nothing twice, over the dense bfloat16 peak of the data sheet. The limit of time
ends the list, and the same command goes on where it stopped.

    python benchmarks/gpu.py [--out benchmarks/gpu.json] [--seconds 480]
    python benchmarks/gpu.py --device cpu --shape tiny      # on a CPU: whether all of it runs
"""

from __future__ import annotations

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
os.environ.setdefault("OMP_NUM_THREADS", "1")

import importlib.util
import itertools
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from common import parser_of, provenance, save
from gpu_work import PEAK_TFLOPS, SHAPES, Work, needed_flops, published_case, start_folder, texts, work_of
from policygrain.data.problem import Problem
from policygrain.data.prompts import PromptRenderer
from policygrain.files import json_lines
from policygrain.grading import Item, Outcome
from policygrain.model import loading
from policygrain.model.device import set_compute_dtype
from policygrain.model.engine import Rollout
from policygrain.model.loading import load_model
from policygrain.model.scoring import recompute_layers
from policygrain.model.vllm_engine import open_engine
from policygrain.objective import method
from policygrain.paths import RunFolder
from policygrain.study.schema import Model, Prompt
from policygrain.train import policy as updates
from policygrain.train.batch import make_batch, minibatches
from policygrain.train.loop import Run, tokens_at_once, train_policy
from policygrain.train.policy import Policy, make_optimizer, open_policy
from policygrain.train.rollouts import Collector, PromptStream

COUNTED, CACHE_GIB = 6, 12  # steps; GiB of TRL's engine when it is tuned: weights, activations, and a cache like ours
SECTION_SECONDS = 200
# In the order of what matters most. (A B B A A B)
ORDER = [("equal", side) for side in ("ours", "tuned", "tuned", "ours", "ours", "tuned")]
ORDER += [("natural", "ours"), ("natural", "tuned"), ("parts", "ours"), ("equal", "documented")]
ORDER += [("long prompts", "ours"), ("long prompts", "tuned"), ("published", "ours"), ("checkpoint", "ours")]
ORDER += [("equal", "documented")] * 2 + [("natural", side) for side in ("tuned", "ours", "ours", "tuned")]
ORDER += [("long prompts", side) for side in ("tuned", "ours", "ours", "tuned")]


class Coin:
    """A grader whose outcomes are those of a coin."""

    def __init__(self) -> None:
        self.draw = random.Random(0)

    def grade(self, items: Sequence[Item]) -> list[Outcome]:
        return ["correct" if self.draw.random() < 0.5 else "incorrect" for _ in items]


class InTurn(PromptStream):
    def _order(self, epoch: int) -> list[int]:
        return [*range(len(self.problems))]


class Timed(Run):
    """A run without the validation and the saved model at the end."""

    def finish(self) -> Any:
        return None


def ours(start: str, work: Work, device: str, counted: int, checkpoint_every: int = 1000) -> dict[str, Any]:
    engine_name = "vllm" if device == "cuda" else "transformers"
    settings = work.settings(device, engine_name, 1 + counted, checkpoint_every)
    chosen = method("grpo")
    policy = open_policy(start, Model(), chosen, settings, 0)
    problems = [Problem(str(i), text, "", "made up") for i, text in enumerate(texts(work, 2 + counted))]
    renderer = PromptRenderer(policy.tokenizer, Prompt(template="{problem}"))
    room = tokens_at_once(problems, renderer, settings)
    engine = open_engine(engine_name, start, policy.model, policy.tokenizer, colocated=True, tokens=room)
    coin: Any = Coin()
    collector = Collector(InTurn(problems, 0), engine, coin, renderer, chosen.sampler, settings, 0, False)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        train_policy(Timed(policy, chosen, collector, problems[:1], run))
        rows = [row for _, row in json_lines(run.timings)]
        tokens = [row["response_length_mean"] * work.prompts * work.group for _, row in json_lines(run.metrics)]
    report = {
        "steps": [b["time"] - a["time"] for a, b in itertools.pairwise(rows)],
        "tokens": statistics.mean(tokens[1:]),
        "phases": {
            name.removeprefix("seconds/"): statistics.median(row.get(name, 0.0) for row in rows[1:])
            for name in rows[-1]
            if name.startswith("seconds/") and name not in ("seconds/total", "seconds/validate")
        },
    }
    if hasattr(engine, "_fits"):
        report["engine_stays_awake"] = engine._fits
    return report


def trl(start: str, work: Work, device: str, counted: int, tuned: bool) -> dict[str, Any]:
    """TRL's trainer on the same work, from the end of one step to the end of the next."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    draw, ends, lengths = random.Random(0), [], []
    cuda = device == "cuda"
    _, tokenizer = load_model(start, place=torch.device("cpu"))

    def coin(completion_ids: list[list[int]], **_: Any) -> list[float]:
        lengths.append(sum(map(len, completion_ids)))
        return [float(draw.random() < 0.5) for _ in completion_ids]

    class Ends(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.global_step % work.updates == 0:
                synchronise(device)
                ends.append(time.time())

    total = torch.cuda.mem_get_info()[1] if cuda else 1
    options: dict[str, Any] = {"vllm_gpu_memory_utilization": 0.3} if cuda else {}
    if tuned and cuda:
        options = {
            "vllm_gpu_memory_utilization": CACHE_GIB * 2**30 / total,
            "generation_kwargs": {"detokenize": False},
            "use_liger_kernel": True,
        }
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=start,
            processing_class=tokenizer,
            reward_funcs=coin,
            args=GRPOConfig(
                output_dir=folder,
                max_steps=(1 + counted) * work.updates,
                per_device_train_batch_size=work.prompts * work.group // work.updates,
                steps_per_generation=work.updates,
                num_generations=work.group,
                max_completion_length=work.tokens,
                temperature=1.0,
                beta=0.0,
                loss_type="grpo",
                learning_rate=1e-6,
                use_vllm=cuda,
                vllm_mode="colocate",
                use_cpu=not cuda,
                bf16=cuda,
                model_init_kwargs={"dtype": "float32"},
                gradient_checkpointing=False,
                save_strategy="no",
                report_to="none",
                logging_strategy="no",
                disable_tqdm=True,
                **options,
            ),
            train_dataset=Dataset.from_list([{"prompt": text} for text in texts(work, 2 + counted)]),
            callbacks=[Ends()],
        )
        trainer.train()
    return {"steps": [b - a for a, b in itertools.pairwise(ends)], "tokens": statistics.mean(lengths[1:])}


def made_up(work: Work, vocabulary: int) -> list[Rollout]:
    draw = random.Random(0)
    prompts = [[draw.randrange(3, 50) for _ in range(work.prompt_tokens)] for _ in range(work.prompts)]
    responses = [[draw.randrange(2, vocabulary) for _ in range(work.tokens)] for _ in range(work.prompts * work.group)]
    return [
        Rollout(prompts[row // work.group], response, False, [], reward=float(draw.randrange(2)))
        for row, response in enumerate(responses)
    ]


@contextmanager
def any_order() -> Iterator[None]:
    yield


def parts(start: str, work: Work, device: str, shape: str) -> dict[str, Any]:
    """Seconds of log-probabilities and of a step's updates: layers as in transformers, and by Liger."""
    settings, chosen, report = work.settings(device, "transformers", 1), method("grpo"), {}
    rollouts, fuse, fixed_order = made_up(work, SHAPES[shape]["vocab_size"]), loading.fuse_layers, updates.fixed_order
    ways: dict[str, Any] = {"transformers": lambda model: None}
    if device == "cuda" and importlib.util.find_spec("liger_kernel"):
        ways |= {"liger": fuse, "liger, any order": fuse}
    for name, loading.fuse_layers in ways.items():
        updates.fixed_order = any_order if name.endswith("any order") else fixed_order
        policy: Any = open_policy(start, Model(), chosen, settings, 0)
        seconds = []
        for _ in range(4):
            begin = time.perf_counter()
            steps = minibatches(work.prompts, work.group, work.updates, seed=0)
            batch, _ = make_batch(rollouts, policy, chosen, settings, current=steps[0].tolist())
            synchronise(device)
            middle = time.perf_counter()
            for rows in steps:
                updates.update(policy, batch.rows(rows), chosen, settings)
            synchronise(device)
            seconds.append((middle - begin, time.perf_counter() - middle))
        report[name] = {
            "log_probs": [a for a, _ in seconds[1:]],
            "update": [b for _, b in seconds[1:]],
            **mfu(3 * needed_flops(SHAPES[shape], work) / statistics.median(b for _, b in seconds[1:]), device),
        }
        del policy, batch
        if device == "cuda":
            torch.cuda.empty_cache()
    return report


def published(device: str) -> dict[str, Any]:
    """Tokens per second of updates on one row of a single response, recomputed in the backward pass."""
    model, tokens = published_case(device)
    loading.fuse_layers(model)
    recompute_layers(model)
    set_compute_dtype(model, torch.bfloat16 if device == "cuda" else torch.float32)
    work = Work(1, 1, 2, tokens // 2, updates=1)
    settings, chosen = work.settings(device, "transformers", 1), method("grpo")
    tokenizer = type("Tokenizer", (), {"pad_token_id": 0})()
    optimizer = make_optimizer(model.train(), None, chosen, settings)
    policy = Policy(model, tokenizer, model, None, optimizer)
    batch, _ = make_batch(made_up(work, model.config.vocab_size), policy, chosen, settings)
    seconds = []
    for _ in range(6):
        synchronise(device)
        begin = time.perf_counter()
        updates.update(policy, batch, chosen, settings)
        synchronise(device)
        seconds.append(time.perf_counter() - begin)
    return {"seconds": seconds[1:], "tokens_per_second": tokens / statistics.median(seconds[1:])}


def mfu(flops_per_second: float, device: str) -> dict[str, float]:
    if device != "cuda":
        return {}
    limit = next((v for name, v in PEAK_TFLOPS.items() if name in torch.cuda.get_device_name()), None)
    return {"mfu": flops_per_second / 1e12 / limit} if limit else {}


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(kind: str, side: str, shape: str, device: str, models: Path, counted: int) -> dict[str, Any]:
    work = work_of(shape, kind if kind in ("natural", "long prompts") else "equal")
    start = start_folder(models, shape, work)
    if kind == "parts":
        return parts(start, work, device, shape)
    if kind == "published":
        return published(device)
    if side == "ours":
        return ours(start, work, device, counted, *([10] if kind == "checkpoint" else []))
    return trl(start, work, device, counted, side == "tuned")


def in_own_process(arguments: list[str], limit: float, device: str) -> dict[str, Any]:
    """The result of a measurement and the most memory that the GPU had in use; where it fails, why."""
    peak, ended = [0], threading.Event()

    def watch() -> None:
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not ended.wait(0.1):
            peak.append(int(subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()[0]))

    watcher = threading.Thread(target=watch, daemon=True)
    if device == "cuda":
        watcher.start()
    with subprocess.Popen(
        [sys.executable, __file__, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, said = process.communicate(timeout=limit)
            found = json.loads(printed.splitlines()[-1])
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and what it has started
            found = {"error": f"not done after {limit:.0f} s"}
        except (ValueError, IndexError):
            found = {"error": said.strip()[-2000:] or f"ended with {process.returncode}"}
        finally:
            ended.set()
    return found | ({"memory_gib": max(peak) / 1024} if device == "cuda" else {})


def summary(rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians of steps, and the ratios of neighbouring processes: TRL's seconds per token over ours."""
    found: dict[str, Any] = {}
    right = {name: [row for row in done if "steps" in row] for name, done in rows.items()}
    for name, done in right.items():
        if done:
            found[name] = {
                "step_seconds": [statistics.median(row["steps"]) for row in done],
                "tokens_per_second": [row["tokens"] / statistics.median(row["steps"]) for row in done],
                "memory_gib": max((row.get("memory_gib", 0.0) for row in done), default=0.0),
            }
    for kind, side in itertools.product(("equal", "natural", "long prompts"), ("tuned", "documented")):
        one, other = (found.get(f"{kind} {who}", {}).get("tokens_per_second", []) for who in ("ours", side))
        if ratios := [a / b for a, b in zip(one, other, strict=False)]:
            found[f"{kind} ours over {side}"] = {"median": statistics.median(ratios), "pairs": ratios}
    return found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--shape", default="1.5b", choices=list(SHAPES))
    parser.add_argument("--seconds", type=float, default=480, help="no measurement starts after so many")
    parser.add_argument("--counted", type=int, default=COUNTED, help="steps of a process that are counted")
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "policygrain-gpu")
    parser.add_argument("--only", nargs=2, metavar=("KIND", "SIDE"), help="this measurement, in this process")
    given = parser.parse_args()
    if given.only:
        kind, side = given.only
        print(json.dumps(measure(kind, side, given.shape, given.device, given.models, given.counted)))
        return
    report: dict[str, Any] = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    # Measurements that failed are made again.
    rows = {name: [row for row in done if "error" not in row] for name, done in report.get("rows", {}).items()}
    report = {**report, **provenance(), "shape": given.shape, "rows": rows}
    begin, seen = time.monotonic(), dict[str, int]()
    common = ["--device", given.device, "--shape", given.shape, "--models", str(given.models)]
    common += ["--counted", str(given.counted)]
    for kind, side in ORDER:
        name = f"{kind} {side}"
        done = report["rows"].setdefault(name, [])
        seen[name] = seen.get(name, 0) + 1
        left = given.seconds - (time.monotonic() - begin)
        if seen[name] <= len(done) or left <= 0 or (side != "ours" and not importlib.util.find_spec("trl")):
            continue
        started = time.monotonic()
        row = in_own_process([*common, "--only", kind, side], min(SECTION_SECONDS, max(left, 60)), given.device)
        done.append(row)
        print(f"[{time.monotonic() - begin:.0f} s] {name} ({time.monotonic() - started:.0f} s): {json.dumps(row)}")
        sys.stdout.flush()
        report["summary"] = summary(report["rows"])
        save(report, given.out)
    print(json.dumps(report.get("summary", {}), indent=1))


if __name__ == "__main__":
    main()
