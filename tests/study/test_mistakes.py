"""Plausible mistakes in every key of a study file: each is refused, before anything is spent, and its key is named."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel

from policygrain.cli import main
from policygrain.commands.check import check_study
from policygrain.errors import UserError
from policygrain.study import load_study, parse_study
from policygrain.study.schema import Study
from policygrain.study.sections import section_of

from ..support.made_up import write_lines
from ..support.small import SMALL, write_study

HUGE, LONG = 10**20, "x" * 300
SUM = {"problem": "what is 2 + 3?", "answer": "5"}
PROGRAM = {"problem": "add two numbers", "answer": "x", "tests": "assert f(1) == 1", "entry_point": "f"}

# With every optional section. `PATH` stands for the folder of files of problems.
VALID: dict[str, Any] = SMALL | {
    "title": "A study",
    "seeds": [0, 1],
    "methods": {"mine": {"base": "grpo", "clip": {"low": 0.1, "high": 0.2}}},
    "experiments": {
        "headline": {"methods": ["grpo", "mine"]},
        "other": {"methods": ["grpo"], "vary": {"group": [4, 8]}, "seeds": [0]},
    },
    "tracking": {"uri": "sqlite:///mlflow.db"},
    "prompt": {"template": "{problem}\n"},
}
OWN = {"model.warm_start.steps": 0, "data.root": "PATH", "data.train_size": 2}

# Key → values, each of which is refused with a message that names the key.
MISTAKES: dict[str, list[Any]] = {
    "name": [LONG, "", "..", "a/b", "my study", "étude", 7],
    "title": [2026, ["A", "title"]],
    "base": [3],
    "seeds": [[HUGE, 1], [-1], [], 3, "0-7", [0, 0], [0.5], [True], list(range(2000))],
    "seeds_per_process": [0, HUGE],
    "model": ["tiny"],
    "model.start": ["", "no/such-model", "./no-such-folder", ["tiny"]],
    "model.revision": [5, ""],
    "model.dtype": ["float16", "fp32"],
    "model.starts": [0, 100_000],
    "model.lora.rank": [0, 10**6],
    "model.lora.alpha": [-1, 1e9],
    "model.lora.targets": [[], [""], "all", ["q_proj", "q_proj"]],
    "model.tiny.hidden": [0, 10**7],
    "model.tiny.heads": [3, 0],
    "model.tiny.intermediate": [HUGE],
    "model.tiny.layers": [0, 1000],
    "model.tiny.context": [0],
    "model.tiny.vocabulary": [100, HUGE],
    "model.warm_start.steps": [-1, 10**8],
    "model.warm_start.mixed_steps": [-5],
    "model.warm_start.batch_size": [0, 10**6],
    "model.warm_start.learning_rate": [0, 100],
    "model.warm_start.direct_share": [70],
    "model.warm_start.error_rate": [2],
    "prompt.template": ["Solve the problem.", "{question}\n", "Solve: {problem}\n"],  # the last: no token for S
    "prompt.program": ["Write a program."],
    "prompt.chat": ["yes", True],
    "prompt.chat_template_kwargs": ["enable_thinking", [1]],
    "prompt.system": ["You are a helpful assistant.", 3],
    "data.root": [3],
    "data.train": [
        [],
        "count",
        ["cuont"],
        ["count", "count"],
        ["nothing.jsonl"],
        [""],
        ["plain_sum"],
    ],  # the last: capitals
    "data.train_size": [10**8, 0, "all"],
    "data.validation_size": [0, 10**9],
    "data.seed": [-1, HUGE],
    "data.levels": [[], [0], [16], [1, 1], 2],
    "grader": ["exact", None],
    "extraction": ["box"],
    "training.steps": [0, 10**9, 2.5, 3.0, "1e1", True],
    "training.prompts_per_step": [0, HUGE],
    "training.group": [1, 10**7],
    "training.updates_per_batch": [0, 17],
    "training.learning_rate": [100, -1e-4, "1e-4x", "0.5", "1e", "e-3", "", True, None, float("nan")],
    "training.warmup_updates": [-1, 10_000],
    "training.weight_decay": [-0.1, 100],
    "training.betas": [[0.9], [0.9, 1.0], [9, 0.95]],
    "training.max_grad_norm": [0, float("inf")],
    "training.temperature": [0, 100],
    "training.max_tokens": [0, 96, HUGE],
    "training.micro_batch_tokens": [0],
    "training.engine": ["hf"],
    "training.kv_gib": [0, 80_000],
    "training.max_mismatch": [0, 1000],
    "training.off_policy_steps": [-1, 4],
    "training.validate_every": [0],
    "training.checkpoint_every": [0, -1],
    "training.old_log_probs": ["vllm"],
    "training.segment_ends": [[], [""], "."],
    "training.compute": ["fp16"],
    "training.fsdp": [{}],
    "training.trainer": ["slime"],
    "training.trl": ["fsdp"],
    "training.verl": [8],
    "training.activation_checkpointing": ["off"],
    "training.threads": [0, 100_000],
    "training.lr": [1e-4],
    "methods": [["mine"]],
    "methods.mine": ["dapo"],
    "methods.my method": [{"base": "grpo"}],
    f"methods.{LONG}": [{"base": "grpo"}],
    "methods.mine.base": ["grop", 3],
    "methods.mine.label": [["M"]],
    "methods.mine.summary": [3],
    "methods.mine.source": [["a", "b"]],
    "methods.mine.advantage": ["gae"],
    "methods.mine.anchor": ["engine"],
    "methods.mine.ratio": [
        "tokens",
        {"name": "block", "size": 0},
        {"name": "block", "size": HUGE},
        {"name": "block", "future_weight": 1.5},
        ["token"],
        "my_parts.f",
    ],
    "methods.mine.clip": [0.2, {"low": 20, "high": 28}, {"low": -0.2}, {"high": 10**400}, {"epsilon": 0.2}],
    "methods.mine.aggregation": ["mean"],
    "methods.mine.penalties": ["kl", [{"name": "kl", "coefficient": -0.1}], [{"name": "entropy"}]],
    "methods.mine.sampler": [{"oversample": 0.5}, {"overlong_buffer": 4096}, {"max_batches": HUGE}, "dynamic"],
    "methods.mine.mtp_heads": [{"learning_rate": 100}],
    "methods.mine.off_policy_bound": [-1],
    "experiments": [{}, ["headline"]],
    "experiments.a/b": [{"methods": ["grpo"]}],
    "experiments.headline.methods": [[], "grpo", ["grpo", "grpo"]],
    "experiments.headline.reference": [5, "dapo"],
    "experiments.headline.compare": [[["grpo"]]],
    "experiments.headline.margin": [0],
    "tuned_on": [["nowhere.yaml"]],
    "training.epochs": [0],
    "experiments.headline": [{"methods": ["ppo"]}],
    "experiments.headline.seeds": [[], [HUGE], [1, 1]],
    "experiments.headline.evaluate": ["no"],
    "experiments.other.vary": [{"group": []}, {"group": 4}, {"group": [4, 4]}, {"segment_ends": [["\n"], ["."]]}],
    "experiments.other": [
        {"methods": ["grpo"], "vary": {"seed": [1, 2]}},
        {"methods": ["grpo"], "vary": {"group": [1, 4]}},
        {"methods": ["grpo"], "vary": {"learning_rate": [100]}},
    ],
    "evaluation.engine": ["sglang"],
    "evaluation.registered_sampling": ["true"],
    "evaluation.stop": ["\n", [""], [3]],
    "evaluation.greedy": ["true"],
    "evaluation.after_training": [1],
    "evaluation.runs_per_engine": [0],
    "evaluation.seed": [-7],
    "evaluation.sampling.n": [0, 10**7],
    "evaluation.sampling": [{"n": 8}],  # greedy eight times
    "evaluation.sampling.temperature": [-1, 70],
    "evaluation.sampling.top_p": [0, 95],
    "evaluation.sampling.max_tokens": [0],
    "evaluation.benchmarks": [
        [],
        ["count"],
        [{"name": "a", "source": "count"}, {"name": "A", "source": "largest"}],
        [{"name": "average", "source": "count"}],
        [{"name": "words", "source": "word_problem"}],  # capitals
    ],
    "evaluation.benchmarks[0].name": [LONG, "AIME 24"],
    "evaluation.benchmarks[0].source": ["aime", "nothing.jsonl", ""],
    "evaluation.benchmarks[0].size": [0, HUGE],
    "evaluation.benchmarks[0].extraction": ["boxes"],
    "evaluation.benchmarks[0].sampling": [4, {"max_tokens": 96}],
    "figures": [["grain"], ["dynamics", "dynamics"], ["loss"], "all"],
    "tracking.uri": ["foo", "localhost:5000", "http//server:5000", "https://me:secret@server", 5000],
    "tracking.live": ["yes"],
}
# (key, value, other keys that are set for it).
WITH_OTHERS: list[tuple[str, Any, dict[str, Any]]] = [
    ("model.warm_start.steps", 10, OWN | {"data.train": ["own.jsonl"]}),
    ("prompt.program", "Write {problem}", OWN | {"data.train": ["programs.jsonl"]}),
    ("data.train", ["accents.jsonl"], OWN),
    ("grader", "numeric", OWN | {"data.train": ["tolerance.jsonl"]}),
    ("experiments.other.methods", ["start"], {"methods.start": {"base": "grpo"}}),
    ("methods", {"MINE": {"base": "grpo"}, "mine": {"base": "grpo"}}, {"experiments.e": {"methods": ["mine", "MINE"]}}),
    ("evaluation.after_training", True, {"training.engine": "vllm"}),
]
ALL = [*((key, value, {}) for key, values in MISTAKES.items() for value in values), *WITH_OTHERS]


def put(data: dict[str, Any], key: str, value: Any) -> None:
    """Set ``key``, such as `evaluation.benchmarks[0].name`, in the data of a study."""
    *parents, last = re.sub(r"\[(\d+)\]", r".\1", key).split(".") if LONG not in key else key.split(".", 1)
    for part in parents:
        data = data[int(part)] if part.isdecimal() else data.setdefault(part, {})
    data[int(last) if last.isdecimal() else last] = value


def with_mistake(folder: Path, key: str, value: Any, others: Mapping[str, Any] = MappingProxyType({})) -> Study:
    data = copy.deepcopy(VALID)
    for name, content in [*others.items(), (key, value)]:
        put(data, name, str(folder) if content == "PATH" else content)
    return parse_study(data, folder / "study.yaml")


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of problems, without a model hub."""
    folder = tmp_path_factory.mktemp("problems")
    write_lines(folder / "own.jsonl", [SUM] * 5)
    write_lines(folder / "accents.jsonl", [SUM, {"problem": "où est la somme de 2 et 3 ?", "answer": "5"}])
    write_lines(folder / "tolerance.jsonl", [SUM | {"absolute_tolerance": 0.1}] * 5)
    write_lines(folder / "programs.jsonl", [PROGRAM] * 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(folder / "hub"))
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        yield folder


def test_the_study_without_a_mistake_is_valid(problems: Path) -> None:
    check_study(with_mistake(problems, "name", "right"))
    check_study(with_mistake(problems, "data.train", ["own.jsonl"], OWN))


@pytest.mark.parametrize(
    "mistake", ALL, ids=lambda mistake: re.sub(r"[^\w.=/-]+", "_", f"{mistake[0]}={mistake[1]!r}")[:60]
)
def test_a_mistake_is_refused_and_its_key_is_named(problems: Path, mistake: tuple[Any, ...]) -> None:
    with pytest.raises(UserError) as refused:
        check_study(with_mistake(problems, *mistake))
    message, key = re.sub(r"\[(\d+)\]", r".\1", str(refused.value)), re.sub(r"\[(\d+)\]", r".\1", mistake[0])
    parents, _, name = key.rpartition(".")
    named = key in message or (parents in message and repr(name) in message)  # a name that is no valid key
    assert named, f"{key} is not named: {message}"
    assert len(message) < 1500 and "object at 0x" not in message


def keys(section: type[BaseModel] = Study, prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}"
        if (inside := section_of(field.annotation)) is not None:
            yield from keys(inside, f"{prefix}{name}.")


def test_every_key_has_a_mistake() -> None:
    tried = {re.sub(r"^(methods|experiments)\.[^.]*", r"\1", re.sub(r"\[0\]", "", mistake[0])) for mistake in ALL}
    tried |= {f"evaluation.benchmarks.sampling.{key}" for key in ("n", "temperature", "top_p", "max_tokens")}
    tried |= {key.rpartition(".")[0] for key in tried}
    assert {*keys()} - tried == set() or {*keys()} - tried <= {*_of_method_sections()}


def _of_method_sections() -> Iterator[str]:
    """The keys of a method's sampler and heads, whose bounds are those of the settings themselves."""
    return (key for key in keys() if key.startswith(("methods.sampler.", "methods.mtp_heads.")))


@pytest.mark.parametrize("value", [10**400, -(10**400), "\ud800", LONG * 100, {}, [], [[]], None, float("inf"), b"x"])
def test_no_value_of_a_key_is_a_traceback(problems: Path, value: Any) -> None:
    """Each is accepted, or refused with the key; numbers have no end in YAML."""
    for key in keys():
        place = re.sub(r"^methods\.", "methods.mine.", re.sub(r"^experiments\.", "experiments.headline.", key))
        place = place.replace("evaluation.benchmarks.", "evaluation.benchmarks[0].")
        with contextlib.suppress(UserError):
            with_mistake(problems, place, value)


UNREADABLE = {
    "deep lists": "[" * 100_000,
    "deep mappings": "{a: " * 100_000,
    "a deep value": f"name: t\ntitle: {'[' * 5000}{']' * 5000}\n",
    "an impossible date": "name: t\ntitle: 2026-13-45\n",
    "a key that is a list": "? [a, b]\n: 1\n",
    "a key that is a mapping": "{{a: 1}: 2}",
    "an integer without end": f"name: t\nseeds: [{'9' * 5000}]\n",
    "an object of Python": "name: !!python/object/apply:os.getcwd []\n",
    "a value inside itself": "name: t\nmethods: &m {mine: *m}\n",
    "a list": "- name: t\n",
    "nothing": "",
    "a tab": "name: t\n\tseeds: [0]\n",
    "no text": "\0\1",
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_is_no_study_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(str(path))) as refused:
        load_study(path)
    assert len(str(refused.value)) < 1500


def test_deep_lines_of_problems_are_refused_with_their_number(
    problems: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `check`, and by all commands that read files of a user."""
    path = problems / "deep.jsonl"
    path.write_text("[" * 100_000 + "\n")
    study = copy.deepcopy(VALID)
    for key, value in (OWN | {"data.train": ["deep.jsonl"], "data.root": str(problems)}).items():
        put(study, key, value)
    for command in (
        ["check", str(write_study(problems / "study.yaml", study))],
        ["grade", str(path), "--out", str(problems / "graded.jsonl")],
    ):
        assert main(command) == 2
        assert re.search(r"deep\.jsonl, line 1: ", capsys.readouterr().err), command


def test_check_takes_the_study_as_plan_does(in_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["check", "studies/smoke.yaml"], ["check", "--config", "studies/smoke.yaml"]):
        assert main(command) == 0
        assert capsys.readouterr().out.startswith("smoke: 4 arms, 8 runs")
    assert main(["check"]) == 0
    assert capsys.readouterr().out.startswith("laptop: ")
