"""Evaluation of models without a study file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..data.sets import published_sampling
from ..errors import UserError
from ..files import atomic_text
from ..paths import StudyFolder
from ..study import Study, load_recorded_study, parse_study, study_text
from ..text import flat, some

PROMPT = "{problem}\nPlease reason step by step, and put your final answer within \\boxed{}.\n"


class EvaluationOptions(NamedTuple):
    """Options of an evaluation. None: the value in the benchmark's registry entry, else the study's default."""

    benchmarks: Sequence[str]  # registered sets, synthetic families or .jsonl files
    samples: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int = 4096
    size: int | None = None  # the first problems of each benchmark
    engine: str = "auto"
    grader: str = "math"
    extraction: str = "boxed"
    prompt: str = PROMPT
    chat: bool = False
    chat_template_kwargs: str = "{}"  # JSON
    stop: Sequence[str] = ()
    root: Path | None = None
    seed: int = 7


def study_of(options: EvaluationOptions, name: str, start: str) -> Study:
    """The study that describes the requested evaluation. UserError names the key of the study that is wrong."""
    samples = 1 if options.samples is None and options.temperature == 0 else options.samples
    asked = {"n": samples, "temperature": options.temperature, "top_p": options.top_p}
    given = {key: value for key, value in asked.items() if value is not None}
    default: dict[str, Any] = {"n": 1, "temperature": 0.0, "top_p": 1.0, "max_tokens": options.max_tokens}
    benchmarks: list[dict[str, Any]] = []
    samplings: list[dict[str, Any]] = []
    for source in options.benchmarks:
        published = published_sampling(source) if given else {}
        samplings.append(own := default | published | given)
        if own["n"] > 1 and not own["temperature"]:
            raise UserError("--samples: several greedy responses are the same; give --temperature, too.")
        benchmark = {"name": _slug(Path(source).stem), "source": source, "size": options.size}
        benchmarks.append(benchmark | ({} if own == samplings[0] else {"sampling": own}))
    try:
        template_arguments = json.loads(options.chat_template_kwargs)
    except ValueError as error:
        raise UserError(
            f"--chat-template-kwargs: {options.chat_template_kwargs!r} is not JSON, such as "
            f"'{{\"enable_thinking\": false}}': {error}."
        ) from error
    content: dict[str, Any] = {
        "name": name,
        "seeds": [0],
        "model": {"start": start},
        "prompt": {"template": options.prompt, "chat": options.chat, "chat_template_kwargs": template_arguments},
        # Nothing is trained, but a study needs a training problem.
        "data": {"train": ["count"], "train_size": 1, "validation_size": 1, "root": options.root and str(options.root)},
        "grader": options.grader,
        "extraction": options.extraction,
        "experiments": {"none": {"methods": ["reinforce"]}},
        "evaluation": {
            "engine": options.engine,
            "sampling": samplings[0] if samplings else default,
            "registered_sampling": not given,
            "benchmarks": benchmarks,
            "seed": options.seed,
            "stop": [*options.stop],
        },
    }
    return parse_study(content, Path("evaluate-model"))


def claim(folder: StudyFolder, study: Study) -> None:
    """Write the study file of an evaluation to ``folder``. UserError if the folder has results of another protocol."""
    if folder.study.exists():
        try:
            there = load_recorded_study(folder.study)
        except UserError as error:
            raise UserError(f"{error}\nChoose another folder with --out.") from error
        old, new = (flat(s.model_dump(mode="json", exclude={"model", "name"})) for s in (there, study))
        if changed := [key for key in {**old, **new} if old.get(key) != new.get(key)]:
            differ = f"{some(changed)} differ{'s' * (len(changed) == 1)}"
            raise UserError(
                f"{folder.path}: has results of another protocol ({differ}). Choose another folder with --out, or "
                "remove this one."
            )
        return
    folder.path.mkdir(parents=True, exist_ok=True)
    atomic_text(folder.study, study_text(study, folder.study))


def named(models: Sequence[str]) -> dict[str, str]:
    """Name → folder or hub name, from arguments `MODEL` or `NAME=MODEL`. UserError if two models have one name."""
    by_name: dict[str, str] = {}
    for text in models:
        name, separator, model = text.partition("=")
        if not separator or "/" in name:
            model = text
            parts = [part for part in Path(text).parts if part not in ("/", "model")]
            name = parts[-1] if parts else text
        name = _slug(name)
        if name in by_name:
            raise UserError(f"two models have the name {name!r}; give one another name: NAME={model}.")
        by_name[name] = model
    return by_name


def fetched(model: str, revision: str | None = None) -> Path:
    """The folder ``model``, or a local copy of the hub's ``model`` at ``revision``. UserError if there is neither."""
    if (folder := Path(model)).is_dir():
        if not (folder / "config.json").is_file():
            raise UserError(f"{folder}: is not a model: it has no config.json.")
        return folder
    if folder.suffix == ".gguf":
        raise UserError(
            f"{folder}: a GGUF file is not a model folder. Read it with transformers' from_pretrained(gguf_file=...), "
            "remove the quantization, and write a folder with save_pretrained."
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, ignore_patterns=["*.gguf", "*.onnx", "*.msgpack"]))
    # The client's errors have no narrower common base classes; all of them mean that there is no such model.
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(f"{model!r} is neither a folder nor a model that the hub provides: {reason}") from error


def _slug(text: str) -> str:
    """``text`` as a valid name of a folder."""
    return re.sub(r"^[^A-Za-z0-9_]+", "", re.sub(r"[^A-Za-z0-9_.-]", "_", text)) or "model"
