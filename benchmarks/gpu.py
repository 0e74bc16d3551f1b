"""What a training step costs on a GPU: seconds by phase, tokens per second, MFU, memory; and TRL's step beside it.

Random weights in the shapes of Qwen2.5 0.5B and 1.5B, bfloat16, nothing downloaded. A step is 32 prompts of 64 tokens ×
8 responses of 256 (random weights do not end by themselves), 4 updates of some 17,000 packed tokens each. Sections:

- `step`: weights to the engine, sampling, log-probabilities (the policy's of all responses, the initial model's of a
  quarter), updates, a checkpoint; with vLLM where it is installed, in the smaller shape with transformers, too;
- `update`: the same without sampling, with activation checkpointing;
- `attention`: forward and backward pass of one layer's attention over a packed row, as one kernel and as padded spans;
- `log_probs`: see log_probs.py, at 8,192 tokens;
- `trl`: a step of TRL's GRPOTrainer on the same work, where it is installed, with the same engines.

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

import importlib.util
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from common import parser_of, provenance, save
from gpu_sections import attention, log_probs_section, step, trl_step
from gpu_work import SHAPES, work_of

TOTAL_SECONDS, SECTION_SECONDS = 480, 200


def sections(shapes: list[str], device: str) -> dict[str, Callable[[], Any]]:
    """What is measured, in the order of what matters most: time may not suffice for all. Only what is installed."""
    has_vllm, has_trl = (importlib.util.find_spec(name) is not None for name in ("vllm", "trl"))
    small, large = shapes[0], shapes[-1]
    engine = "vllm" if has_vllm else "transformers"
    plan: dict[str, Callable[[], Any]] = {f"step {large} {engine}": lambda: step(large, device, engine, False)}
    if has_trl:
        with_vllm = has_vllm and device == "cuda"
        plan[f"trl {large} {'vllm' if with_vllm else 'transformers'}"] = lambda: trl_step(large, device, with_vllm)
    plan["log_probs"] = lambda: log_probs_section(large, device)
    plan[f"update {large} checkpointing"] = lambda: step(large, device, None, True)
    plan[f"attention {large}"] = lambda: attention(large, device)
    plan[f"step {small} transformers"] = lambda: step(small, device, "transformers", False)
    if has_trl:
        plan[f"trl {small} transformers"] = lambda: trl_step(small, device, False)
    if has_vllm:
        plan[f"step {small} vllm"] = lambda: step(small, device, "vllm", False)
    return plan


def in_own_process(name: str, limit: float) -> Any:
    """The section's result; where it fails, why."""
    command = [sys.executable, *sys.argv, "--section", name]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as section:
        try:
            printed, said = section.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(section.pid, signal.SIGKILL)  # and what it has started
            return {"error": f"not done after {limit:.0f} s"}
    try:
        return json.loads(printed.splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": said.strip()[-2000:] or f"ended with {section.returncode}"}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--shape", nargs="+", default=["0.5b", "1.5b"], choices=list(SHAPES))
    parser.add_argument("--section", help="this one alone, in this process")
    arguments = parser.parse_args()

    plan = sections(arguments.shape, arguments.device)
    if arguments.section:
        print(json.dumps(plan[arguments.section]()))
        return
    report: dict[str, Any] = {
        **provenance(),
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
        save(report, arguments.out)


if __name__ == "__main__":
    main()
