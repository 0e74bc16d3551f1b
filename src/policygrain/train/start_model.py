"""Initial models: making them by supervised fine-tuning, of a tiny model or of a pretrained one, and checks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import digests
from ..data.families import families_to_demonstrate
from ..data.problem import Problem, read_problems
from ..data.sources import check_characters
from ..errors import UserError
from ..files import model_folder
from ..hub import identity
from ..paths import DataFolder, StartFolder
from ..records import StartModelRecord, write_record
from ..results import start_model
from ..study.dependencies import settings

if TYPE_CHECKING:
    from ..study import Study


def build_start_model(study: Study, seed: int, data: DataFolder, out: StartFolder) -> None:
    """Fine-tune the tiny or the pretrained model of ``study`` on demonstrations, and replace ``out`` by it."""
    import torch

    from ..data.prompts import PromptRenderer
    from ..model import tiny
    from ..model.device import gpu_errors, resolve_compute, set_compute_dtype
    from ..model.loading import load_model

    started = time.perf_counter()
    torch.set_num_threads(study.training.threads)
    families, tuning, optimizers = families_to_demonstrate(study), study.model.sft or study.model.warm_start, None
    model: Any
    if study.model.sft is None:
        model, tokenizer = _tiny_model(study, seed, read_problems(data.train))
    else:
        model, tokenizer = load_model(study.model.start, study.model.revision, fused=False)
        set_compute_dtype(model, resolve_compute(study.model.sft.compute))
        optimizers = [torch.optim.AdamW(model.parameters(), lr=tuning.learning_rate, fused=True)]
    losses: list[float] = []
    if tuning.steps:
        renderer = PromptRenderer(tokenizer, study.prompt)
        with gpu_errors(study.training):
            losses = tiny.finetune(model, renderer, families, study.data.levels, tuning, seed, optimizers)
    last = losses[-50:]
    with model_folder(out.path, again="it builds the initial model") as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        record = StartModelRecord(
            seed=seed,
            settings=_made_from(study, seed, data),
            parameters=sum(p.numel() for p in model.parameters()),
            steps=tuning.steps,
            seconds=time.perf_counter() - started,
            final_loss=sum(last) / len(last) if last else None,
            digest=digests.of_model(folder),
        )
        write_record(StartFolder(folder).record, record)


def _tiny_model(study: Study, seed: int, problems: list[Problem]) -> tuple[Any, Any]:
    """The untrained tiny model of a seed, and its tokenizer."""
    from ..model import tiny

    spec = study.model.tiny
    check_characters(study, problems, "data.train")
    if spec.vocabulary is None:
        tokenizer = tiny.character_tokenizer()
    else:
        tokenizer = tiny.bpe_tokenizer([p.problem for p in problems], spec.vocabulary)
    return tiny.build(spec, tokenizer, seed), tokenizer


def ensure_start_model(
    study: Study, seed: int, data: DataFolder, out: StartFolder, elsewhere: Iterable[StartFolder] = ()
) -> None:
    """Build the initial model unless ``out`` already contains the one of this study, seed and training data.

    If it is in a folder ``elsewhere``, of another study, it is copied. UserError if ``out`` contains anything other
    than an initial model of this pipeline, because it would be lost.
    """
    inputs = _made_from(study, seed, data)
    if _is_made(out, inputs):
        return
    if not out.record.exists() and out.path.exists() and any(out.path.iterdir()):
        raise UserError(
            f"{out.path}: contains files but no {out.record.name}, so it is not an initial model made by "
            "policygrain. Choose another folder, or remove this one."
        )
    for other in elsewhere:
        if _is_made(other, inputs):
            with model_folder(out.path, again="it copies the initial model") as folder:
                shutil.copytree(other.path, folder, dirs_exist_ok=True)
            return
    build_start_model(study, seed, data, out)


def _is_made(folder: StartFolder, inputs: dict[str, Any]) -> bool:
    """Whether a folder has the undamaged initial model that is made from these inputs."""
    try:
        record = start_model(folder)
    except UserError:  # none, or of another version
        return False
    return record.settings == inputs and record.digest == digests.of_model(folder.path)


def _made_from(study: Study, seed: int, data: DataFolder) -> dict[str, Any]:
    """The inputs of an initial model: settings, and digests of the training problems and of a pretrained model."""
    from ..model.device import resolve_compute

    model = study.model
    pretrained = {}
    if model.sft is not None:
        compute = str(resolve_compute(model.sft.compute))  # `auto` depends on the machine
        pretrained = {"start_model": identity(model.start, model.revision), "compute": compute}
    return {**settings(study, "start_model"), "seed": seed, "training_data": digests.of_file(data.train), **pretrained}


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
