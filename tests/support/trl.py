"""TRL's trainers on a tiny model that samples digits and ends at any length."""

import warnings
from pathlib import Path
from typing import Any

import yaml

from policygrain.model.loading import load_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about versions of vLLM, which plays no part here
    from datasets import Dataset
    from trl import GRPOConfig

SETTINGS: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
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
