"""A trained model as MLflow's: what it takes and gives is written beside it, and MLflow loads and serves it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..provenance import versions

if TYPE_CHECKING:
    from mlflow import MlflowClient

NAME = "model"
REQUIRED = ("torch", "transformers")


def log_model(client: MlflowClient, run_id: str, folder: Path) -> None:
    """Log the model in ``folder`` as `runs:/RUN_ID/model`, with its signature: prompts in, texts out.

    The same files in the same place, so that logging it again changes nothing.
    """
    import mlflow.transformers
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = Schema([ColSpec(DataType.string)])
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with tempfile.TemporaryDirectory() as work:
        mlflow.transformers.save_model(
            {"model": model, "tokenizer": tokenizer},
            str(Path(work) / NAME),
            task="text-generation",
            signature=ModelSignature(inputs=text, outputs=text),
            # Named here: MLflow would start the model in a process of its own to find out.
            pip_requirements=[f"{name}=={version}" for name, version in versions().items() if name in REQUIRED],
        )
        client.log_artifacts(run_id, str(Path(work) / NAME), NAME)
