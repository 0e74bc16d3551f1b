"""What PolicyGrainTrainer adds to TRL's step: TRL's own loss and ours in turns on the same micro-batches.

A real training of TRL with the model and batch of `training_step.py` (scenario `fixed`, so that all micro-batches have
as many tokens). In each micro-batch both losses are computed with their gradients, in turns: TRL's own with its
defaults, and the method's. TEPO also keeps entropies of the pass for old log-probabilities, which is timed with and
without them. What a step adds is the sum of these differences; the step itself is TRL's, in a training of its own.
"""

from __future__ import annotations

import os

# Read when the libraries are loaded.
os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import statistics
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOTrainer

from policygrain.data.families import FAMILIES, generate
from policygrain.integrations.trl import PolicyGrainTrainer
from policygrain.model.loading import load_model
from training_step import SEED, TINY, grpo_config, start_model

REPEATS = 5  # turns of each loss in a micro-batch
METHODS = ("grpo", "gspo", "tepo", "mpo")


class Timed(PolicyGrainTrainer):
    """Both losses in turns on every micro-batch; training goes on with ours."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        super().__init__(*args, **kwargs)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        losses = {"trl": GRPOTrainer._compute_loss, "policygrain": PolicyGrainTrainer._compute_loss}
        for _ in range(REPEATS):
            for name, loss in losses.items():
                begin = time.perf_counter()
                loss(self, model, inputs).backward()
                self.seconds[name].append(time.perf_counter() - begin)
                model.zero_grad(set_to_none=True)
                self._parts = []
        return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() and self._reads_entropies:
            for name, wanted in (("old", False), ("old with entropies", True)):
                begin = time.perf_counter()
                GRPOTrainer._get_per_token_logps_and_entropies(self, *args, **kwargs | {"compute_entropy": wanted})
                self.seconds[name].append(time.perf_counter() - begin)
        return super()._get_per_token_logps_and_entropies(*args, **kwargs)


class Steps(TrainerCallback):
    """Seconds of TRL's steps: from the end of the last update of a batch to the end of that of the next."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.begin = 0.0

    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        if state.global_step % args.steps_per_generation == 0:
            self.seconds.append(time.perf_counter() - self.begin)
            self.begin = time.perf_counter()


def train(kind: Any, start: str, folder: str, steps: int, callbacks: list[Any], **own: Any) -> Any:
    """A training of ``steps`` steps on the problems of the laptop study."""
    problems = [p for family in FAMILIES for p in generate(family, "train", 60, SEED)]
    model, tokenizer = load_model(start)
    config = grpo_config(folder, steps, TINY)
    if own:  # the method decides; left at TRL's default
        config.loss_type = "dapo"
    trainer = kind(
        model=model,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [len(set(text)) / (1 + len(text)) for text in completions],
        args=config,
        train_dataset=Dataset.from_list([{"prompt": p.problem} for p in problems]),
        callbacks=callbacks,
        **own,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def in_trl(steps: int = 4) -> dict[str, Any]:
    """Seconds of TRL's step, and of what each method adds to it: medians, and the share."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = start_model(Path(folder))["fixed"]
        callback = Steps()
        train(GRPOTrainer, start, f"{folder}/trl", 1 + steps, [callback])
        step = statistics.median(callback.seconds[1:])
        found = {}
        for name in METHODS:
            seconds = train(Timed, start, f"{folder}/{name}", steps, [], objective=name).seconds
            median = {key: statistics.median(values[2:]) for key, values in seconds.items()}
            added = TINY.updates_per_batch * (median["policygrain"] - median["trl"])
            added += median.get("old with entropies", 0.0) - median.get("old", 0.0)
            found[name] = {"seconds": median, "added": added, "share": added / step}
    return {"seconds_per_step": step, "methods": found}
