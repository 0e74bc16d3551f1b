"""Initial models: building the tiny one of a study, and checks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import digests
from ..data.families import families_to_demonstrate
from ..data.problem import read_problems
from ..data.sources import check_characters
from ..errors import UserError
from ..files import model_folder
from ..hub import identity
from ..paths import DataFolder, StartFolder
from ..records import StartModelRecord, write_record
from ..results import start_model
from ..study.dependencies import start_settings

if TYPE_CHECKING:
    from ..study import Study


def build_start_model(study: Study, seed: int, data: DataFolder, out: StartFolder) -> None:
    """Build the tiny model of ``study``, fine-tune it on demonstrations, and replace ``out`` by it."""
    import torch

    from ..data.prompts import PromptRenderer
    from ..model import tiny

    started = time.perf_counter()
    torch.set_num_threads(study.training.threads)
    spec, warm_start = study.model.tiny, study.model.warm_start
    problems = read_problems(data.train)
    check_characters(study, problems, "data.train")
    if spec.vocabulary is None:
        tokenizer = tiny.character_tokenizer()
    else:
        tokenizer = tiny.bpe_tokenizer([p.problem for p in problems], spec.vocabulary)
    model = tiny.build(spec, tokenizer, seed)
    families = families_to_demonstrate(study)
    losses: list[float] = []
    if warm_start.steps:
        renderer = PromptRenderer(tokenizer, study.prompt)
        losses = tiny.finetune(model, renderer, families, study.data.levels, warm_start, seed)
    last = losses[-50:]
    with model_folder(out.path, again="it builds the initial model") as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        record = StartModelRecord(
            seed=seed,
            settings=_made_from(study, seed, data),
            parameters=sum(p.numel() for p in model.parameters()),
            steps=warm_start.steps,
            seconds=time.perf_counter() - started,
            final_loss=sum(last) / len(last) if last else None,
            digest=digests.of_model(folder),
        )
        write_record(StartFolder(folder).record, record)


def ensure_start_model(study: Study, seed: int, data: DataFolder, out: StartFolder) -> None:
    """Build the initial model unless ``out`` already contains the one of this study, seed and training data.

    UserError if ``out`` contains anything other than an initial model of this pipeline, because it would be lost.
    """
    if out.record.exists():
        record = start_model(out)
        if record.settings == _made_from(study, seed, data) and record.digest == digests.of_model(out.path):
            return
    elif out.path.exists() and any(out.path.iterdir()):
        raise UserError(
            f"{out.path}: contains files but no {out.record.name}, so it is not an initial model made by "
            "policygrain. Choose another folder, or remove this one."
        )
    build_start_model(study, seed, data, out)


def _made_from(study: Study, seed: int, data: DataFolder) -> dict[str, Any]:
    """The inputs of an initial model: settings, and the digest of the training problems."""
    return {**start_settings(study, seed), "training_data": digests.of_file(data.train)}


def check_start_model(folder: Path, revision: str | None = None) -> str:
    """The digest of an initial model in ``folder``, or its commit if ``folder`` is the name of a model on the hub.

    UserError if the model has a record with another digest.
    """
    digest = identity(str(folder), revision)
    made = StartFolder(folder)
    if made.record.exists() and start_model(made).digest != digest:
        raise UserError(
            f"{folder}: its files are not those that {made.record.name} names: one is changed or missing. Remove the "
            "folder and build the initial model again."
        )
    return digest
