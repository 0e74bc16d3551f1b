"""Logs a trained model to MLflow with its signature, so that MLflow can load and serve it."""

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

    Logging it again writes the same files to the same place.
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
            # Without this list MLflow would load the model in another process to find its requirements.
            pip_requirements=[f"{name}=={version}" for name, version in versions().items() if name in REQUIRED],
        )
        client.log_artifacts(run_id, str(Path(work) / NAME), NAME)
