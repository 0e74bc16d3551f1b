"""Which keys of a study file supersede a run in its folder, and which leave it as it is."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest

from policygrain.engines.folder import claim, run_config
from policygrain.results.layout import DataFolder, RunFolder
from policygrain.results.schema import write_record
from policygrain.study import Study
from policygrain.study.fingerprint import decides, leaves
from policygrain.study.runs import run_matrix
from policygrain.train import loop

from ..support.files import snapshot
from ..support.small import small_study, train_small

# Another value for each key of the model, the prompt, the grader, the training and the methods.
CHANGED: dict[str, Any] = {
    "model.start": "some/model",
    "model.revision": "main",
    "model.dtype": "bfloat16",
    "model.lora.rank": 8,
    "model.lora.alpha": 16.0,
    "model.lora.targets": ["q_proj"],
    "model.tiny.hidden": 64,
    "model.tiny.intermediate": 64,
    "model.tiny.layers": 1,
    "model.tiny.heads": 1,
    "model.tiny.context": 128,
    "model.tiny.vocabulary": 300,
    "model.warm_start.steps": 5,
    "model.warm_start.mixed_steps": 5,
    "model.warm_start.batch_size": 8,
    "model.warm_start.learning_rate": 1e-3,
    "model.warm_start.direct_share": 0.5,
    "model.warm_start.error_rate": 0.1,
    "model.starts": 1,
    "prompt.template": "q: {problem}\n",
    "prompt.program": "{problem}\nIn Python:\n",
    "prompt.chat": True,
    "prompt.system": "Think.",
    "grader": "math",
    "training.segment_ends": ["."],
    "training.steps": 5,
    "training.prompts_per_step": 8,
    "training.group": 8,
    "training.updates_per_batch": 1,
    "training.epochs": 2,
    "training.learning_rate": 2e-3,
    "training.warmup_updates": 3,
    "training.weight_decay": 0.1,
    "training.betas": [0.9, 0.99],
    "training.max_grad_norm": 2.0,
    "training.temperature": 0.9,
    "training.max_tokens": 16,
    "training.micro_batch_tokens": 512,
    "training.engine": "vllm",
    "training.kv_gib": 0.5,
    "training.max_mismatch": 0.5,
    "training.sampler_bits": 4,
    "training.ahead": 1,
    "training.old_log_probs": "engine",
    "training.sampling_seed": 1,
    "training.shuffle_rewards": True,
    "training.validate_every": 1,
    "training.checkpoint_every": 2,
    "training.keep_every": 2,
    "training.max_ratio": 100.0,
    "training.compute": "bfloat16",
    "training.trainer": "trl",
    "training.trl": {"optim": "adamw_torch"},
    "training.verl": {"trainer": {"nnodes": 2}},
    "training.activation_checkpointing": True,
    "training.threads": 2,
    "methods": {"grpo": {"clip": {"high": 0.3}}},
}
DECIDES = {
    key: decides(info) or [] for key, info in leaves(Study) if key.split(".")[0] in {k.split(".")[0] for k in CHANGED}
}
# With every optional section present, so that each of their keys can be changed alone. Two seeds, because
# `starts` makes no difference to the first.
BASE: dict[str, Any] = {
    "model": {"lora": {}, "tiny": {"hidden": 32, "intermediate": 32, "layers": 2, "heads": 1, "context": 96}},
    "seeds": [0, 1],
}


def changed(key: str, value: Any) -> Study:
    """The study of BASE with one key changed."""
    data = copy.deepcopy(BASE)
    *sections, last = key.split(".")
    place = data
    for section in sections:
        place = place.setdefault(section, {})
    place[last] = value
    if key == "prompt.system":
        place["chat"] = True  # a system prompt needs a chat template
    return small_study(**data)


def folder_of_a_run(study: Study, made: tuple[Path, Path], path: Path) -> RunFolder:
    """A run folder with a config and metrics, of seed 1, that nobody trained."""
    run = RunFolder(path)
    write_record(run.config, config_of(study, made))
    run.metrics.write_text("steps")
    return run


def config_of(study: Study, made: tuple[Path, Path]) -> Any:
    return run_config(study, next(iter(run_matrix(study).arms.values())), 1, str(made[1]), DataFolder(made[0]))


def test_every_key_is_changed_below() -> None:
    assert set(CHANGED) == set(DECIDES)


@pytest.mark.parametrize("key", CHANGED)
def test_a_run_is_superseded_by_a_change_of_a_key_that_decides_it_and_of_no_other(
    key: str, made: tuple[Path, Path], tmp_path: Path
) -> None:
    """The initial model and the data are given: keys that only these depend on change them, not the run's settings."""
    run = folder_of_a_run(small_study(**BASE), made, tmp_path / "run")
    claim(run, config_of(changed(key, CHANGED[key]), made))
    assert run.metrics.exists() == ("run" not in DECIDES[key])
    assert len([*run.path.glob("superseded-*")]) == ("run" in DECIDES[key])


@pytest.mark.parametrize(("section", "key"), [("model", "lora")])
def test_an_optional_section_of_defaults_is_not_the_same_as_none(
    section: str, key: str, made: tuple[Path, Path], tmp_path: Path
) -> None:
    run = folder_of_a_run(small_study(seeds=[0, 1]), made, tmp_path / "run")
    claim(run, config_of(small_study(seeds=[0, 1], **{section: {key: {}}}), made))
    assert not run.metrics.exists()


@pytest.mark.parametrize("what", ["train", "validation", "initial model"])
def test_a_run_is_superseded_by_other_inputs(what: str, made: tuple[Path, Path], tmp_path: Path) -> None:
    study = small_study(seeds=[0, 1])
    run = folder_of_a_run(study, made, tmp_path / "run")
    data, start = (Path(shutil.copytree(path, tmp_path / path.name)) for path in made)
    if what == "initial model":
        (start / "start.json").unlink()
        (start / "generation_config.json").write_text("{}")
    else:
        (data / f"{what}.jsonl").write_text("")
    claim(run, config_of(study, (data, start)))
    assert not run.metrics.exists()


def test_an_ended_run_is_left_where_only_runtime_keys_change(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train_small(small_study(), tmp_path / "run", *made)
    before = snapshot(run)
    monkeypatch.setattr(loop, "train", None)
    runtime = {
        key.removeprefix("training."): value
        for key, value in CHANGED.items()
        if key.startswith("training.") and not DECIDES[key]
    }
    assert {"micro_batch_tokens", "threads", "checkpoint_every", "max_ratio", "kv_gib"} < set(runtime)
    train_small(small_study(training=runtime), run, *made)
    assert snapshot(run).keys() == before.keys()
    assert {k for k, v in snapshot(run).items() if v != before[k]} <= {"run/lock"}
