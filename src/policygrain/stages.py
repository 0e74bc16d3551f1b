"""The stages of the pipeline that tie a study's settings to the rooms that do the work."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UserError
from .files import atomic_json, read_json
from .provenance import commit, file_digest, hardware, model_digest, versions
from .study.runs import Arm, check_methods, run_matrix
from .tasks.families import FAMILIES
from .tasks.problem import Problem, read_problems
from .tasks.sources import prepare

if TYPE_CHECKING:
    from .study import Study
    from .train.stopping import Stop


def prepare_study(study: Study, folder: Path) -> None:
    """Write a study's problems. UserError for methods that do not work and gold answers that its grader cannot read."""
    check_methods(study)
    prepare(study, folder)
    if study.grader != "math":
        return
    from .grading import MathGrader, Options

    with MathGrader() as grader:
        for path in sorted(folder.rglob("*.jsonl")):
            by_options: dict[Options, list[Problem]] = {}
            for problem in read_problems(path):
                by_options.setdefault(Options.of(problem), []).append(problem)
            for options, problems in by_options.items():
                grader.check_golds([p.answer for p in problems], [p.id for p in problems], options)


def build_start_model(study: Study, seed: int, data: Path, out: Path) -> None:
    """Build the tiny model of ``study``, teach it, save it in ``out``. Everything random hangs on ``seed``."""
    import torch

    from .model import tiny
    from .model.warm_start import finetune
    from .tasks.prompts import PromptRenderer

    torch.set_num_threads(study.training.threads)
    spec, warm_start = study.model.tiny, study.model.warm_start
    problems = read_problems(data / "train.jsonl")
    if spec.vocabulary is None:
        tokenizer = tiny.character_tokenizer()
    else:
        tokenizer = tiny.bpe_tokenizer([p.problem for p in problems], spec.vocabulary)
    model = tiny.build(spec, tokenizer, seed)
    history: list[dict[str, float]] = []
    families = [source for source in study.data.train if source in FAMILIES]
    if warm_start.steps and not families:
        raise UserError("model.warm_start.steps: only synthetic families have worked steps to learn from; set it to 0.")
    if warm_start.steps:
        history = finetune(model, PromptRenderer(tokenizer, study.prompt), families, warm_start, seed)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    tail = [h["loss"] for h in history[-50:]]
    atomic_json(
        out / "start.json",
        {
            "seed": seed,
            "parameters": sum(p.numel() for p in model.parameters()),
            "warm_start": warm_start.model_dump(),
            "final_loss": sum(tail) / len(tail) if tail else None,
            "digest": model_digest(out),
        },
    )


def train_run(
    study: Study,
    arm_name: str | None,
    seed: int,
    run_dir: Path,
    start: str | None,
    data: Path | None,
    stop: Stop | None = None,
) -> str:
    """Train one run of ``study`` in ``run_dir`` and write its `summary.json`; what is missing is made first.

    Several ranks call it alike, with folders that all of them see.
    Returns the key of all that decides the run's result.
    """
    from .train.ranks import on_rank_0, ranks

    arms = run_matrix(study).arms
    arm = next(iter(arms.values())) if arm_name is None else arms.get(arm_name) or Arm(arm_name)
    arm.method(study).check()
    start, data, content, key, done = on_rank_0(lambda: _made_ready(study, arm, seed, run_dir, start, data))
    if done:
        return key

    from .train.loop import train

    final = train(
        method=arm.method(study),
        settings=arm.training(study),
        prompt=study.prompt,
        grader_name=study.grader,
        seed=seed,
        start=start,
        spec=study.model,
        train_problems=read_problems(data / "train.jsonl"),
        validation_problems=read_problems(data / "validation.jsonl"),
        run_dir=run_dir,
        stop=stop,
    )
    environment = {"versions": versions(), "commit": commit(), "hardware": hardware(), "ranks": ranks()[1]}
    on_rank_0(
        lambda: atomic_json(
            run_dir / "summary.json",
            {**content, "key": key, "final": final, "model_digest": model_digest(run_dir / "model"), **environment},
        )
    )
    return key


def _made_ready(
    study: Study, arm: Arm, seed: int, run_dir: Path, start: str | None, data: Path | None
) -> tuple[str, Path, dict[str, Any], str, bool]:
    """(start model, data, all that decides the run's result, the key of that, whether the run has ended already)."""
    check_free_space(run_dir)
    if data is None:
        data = run_dir / "data"
        prepare_study(study, data)
    if start is None:
        start = study.model.start
        if start == "tiny":
            start = str(run_dir / "start")
            if not (run_dir / "start" / "start.json").exists():
                build_start_model(study, seed if study.model.warm_start_per_seed else study.seeds[0], data, Path(start))
    content = {
        "arm": arm.name,
        "seed": seed,
        "method": arm.method(study).data(),
        "training": arm.training(study).model_dump(),
        "prompt": study.prompt.model_dump(),
        "grader": study.grader,
        "start": {
            "model": study.model.start,
            "revision": study.model.revision,
            "dtype": study.model.dtype,
            **({"lora": study.model.lora.model_dump()} if study.model.lora else {}),
            "digest": model_digest(Path(start)),
        },
        "data": {name: file_digest(data / f"{name}.jsonl") for name in ("train", "validation")},
    }
    decides = {**content, "training": arm.training(study).deciding()}
    key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]
    _claim(run_dir, key, content)
    done = (run_dir / "summary.json").exists() and (run_dir / "model" / "config.json").exists()
    return start, data, content, key, done


LEFT_BEHIND = (
    "run.json",
    "summary.json",
    "metrics.jsonl",
    "timings.jsonl",
    "checkpoints",
    "tokens",
    "model",
    "evaluation",
)


def _claim(run_dir: Path, key: str, content: dict[str, Any]) -> None:
    """A run directory belongs to one configuration. What another one left is set aside, not continued and not lost.

    UserError while a process is training there.
    """
    from .train.checkpoint import run_lock

    claim = run_dir / "run.json"
    with run_lock(run_dir):
        if claim.exists() and (old := read_json(claim).get("key")) != key:
            aside = run_dir / f"superseded-{old}"
            aside.mkdir(exist_ok=True)
            for item in LEFT_BEHIND:
                if (run_dir / item).exists():
                    (run_dir / item).replace(aside / item)
            print(f"{run_dir}: holds a run of other settings; it was moved to {aside}.")
        atomic_json(claim, {"key": key, **content})


def check_free_space(folder: Path, needed_mb: int = 200) -> None:
    """UserError before anything is spent when ``folder`` cannot be written or its disk is nearly full."""
    import shutil

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
        free = shutil.disk_usage(folder).free // 2**20
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}.") from error
    if free < needed_mb:
        raise UserError(f"{folder}: only {free} MB are free on this disk, at least {needed_mb} MB are needed.")
