"""TRL's trainers on a tiny model that samples digits and ends at any length."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from policygrain.model.loading import load_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about versions of vLLM, which plays no part here
    from datasets import Dataset
    from trl import GRPOConfig

# A step of 8 responses to 2 prompts, and a second one on the same rollouts, which is off-policy.
SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_generations": 4,
    "num_iterations": 2,
    "max_completion_length": 10,
    "max_steps": 4,
    "learning_rate": 3e-3,
    "lr_scheduler_type": "constant",
    "report_to": "none",
    "logging_steps": 1,
    "save_strategy": "no",
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
    "seed": 5,
}
PROMPTS = ("1+2=\n", "7+5=\n", "30+4=\n", "9+9=\n")
OF_THE_TRAINER = ("objective", "micro_batch_statistics")


def reward(completions: list[str], **_: Any) -> list[float]:
    """Digits are worth something, so that groups have different rewards."""
    return [sum(c.isdigit() for c in text) / (1 + len(text)) for text in completions]


def trainer_of(kind: Any, start: str, folder: Path, prompts: tuple[str, ...] = PROMPTS, **settings: Any) -> Any:
    """A trainer of this class; ``settings`` are changes of SETTINGS and what PolicyGrainTrainer itself takes."""
    model, tokenizer = load_model(start)
    given = {key: settings.pop(key) for key in OF_THE_TRAINER if key in settings}
    rows = [{"prompt": text} for text in prompts * 4]
    args = GRPOConfig(output_dir=str(folder), **SETTINGS | settings)
    return kind(model, reward, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, **given)
