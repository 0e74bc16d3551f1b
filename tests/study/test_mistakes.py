"""Plausible mistakes in every key of a study file: each is refused, before anything is spent, and its key is named."""

import contextlib
import copy
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from policygrain.cli import main
from policygrain.commands.check import check_study
from policygrain.errors import UserError
from policygrain.merging import merge
from policygrain.objective import Method
from policygrain.study import load_study, parse_study
from policygrain.study.schema import Study, leaves

from ..support.files import write_lines
from ..support.small import SMALL, set_key, write_study

SUM = {"problem": "what is 2 + 3?", "answer": "5"}
PROGRAM = {"problem": "add two numbers", "answer": "x", "tests": "assert f(1) == 1", "entry_point": "f"}
TEXT = Path(__file__).with_name("mistakes.yaml").read_text()
for word, meant in {"LONG": "x" * 300, "HUGE": 10**20, "MANY": [*range(2000)]}.items():
    TEXT = TEXT.replace(word, str(meant))
LIST = yaml.safe_load(TEXT)
VALID: dict[str, Any] = SMALL | LIST["valid"]
ALL = [*([key, value, {}] for key, values in LIST["refused"].items() for value in values), *LIST["refused_with"]]
KEYS = {key for key, _ in leaves(Study)} | {f"methods.{one.name}" for one in fields(Method) if one.name != "name"}
KEYS |= {key.rpartition(".")[0] for key in KEYS if "." in key}  # the sections


def by_points(text: str) -> str:
    """`benchmarks.0` for `benchmarks[0]`."""
    return re.sub(r"\[(\d+)\]", r".\1", text)


def with_value(folder: Path, key: str, value: Any, others: dict[str, Any] | None = None) -> Study:
    """The valid study with a value of a key, and with those of other keys; `own`: of problems from files."""
    data, others = copy.deepcopy(VALID), dict(others or {})
    own = LIST["own"] if others.pop("own", False) else {}
    for name, content in [*own.items(), *others.items(), (key, value)]:
        set_key(data, by_points(name), str(folder) if content == "PATH" else content)
    return parse_study(data, folder / "study.yaml")


@pytest.fixture(scope="module")
def problems(tmp_path_factory):
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


def test_the_study_without_a_mistake_is_valid(problems):
    check_study(with_value(problems, "name", "right"))
    check_study(with_value(problems, "data.train", ["own.jsonl"], {"own": True}))


@pytest.mark.parametrize("mistake", ALL, ids=lambda x: re.sub(r"[^\w.=/-]+", "_", f"{x[0]}={x[1]!r}")[:60])
def test_a_mistake_is_refused_and_its_key_is_named(problems, mistake):
    with pytest.raises(UserError) as refused:
        check_study(with_value(problems, *mistake))
    message, key = by_points(str(refused.value)), by_points(mistake[0])
    parents, _, name = key.rpartition(".")
    named = key in message or (parents in message and repr(name) in message)  # a name that is no valid key
    assert named, f"{key} is not named: {message}"
    assert len(message) < 1500 and "object at 0x" not in message


@pytest.mark.parametrize(("changes", "says"), LIST["said"])
def test_a_message_says_what_is_wrong_and_what_is_meant(changes, says, in_root):
    methods = changes.get("methods")
    used = {"experiments": {"headline": {"methods": [*methods]}}} if methods and "grpo" not in methods else {}
    with pytest.raises(UserError, match=says):
        check_study(parse_study(merge(merge(VALID, used), changes), Path("study.yaml")))


def test_every_key_has_a_mistake():
    tried = {re.sub(r"^(methods|experiments)\.[^.]*", r"\1", key.replace("[0]", "")) for key, *_ in ALL}
    tried |= {f"evaluation.benchmarks.sampling.{key}" for key in ("n", "temperature", "top_p", "max_tokens")}
    tried |= {key.rpartition(".")[0] for key in tried}
    assert tried >= KEYS


VALUES = [10**400, -(10**400), "\ud800", "x" * 30_000, {}, [], [[]], None, float("inf"), b"x"]


@pytest.mark.parametrize("value", VALUES, ids=map(str, range(len(VALUES))))
def test_no_value_of_a_key_is_a_traceback(problems, value):
    """Each is accepted, or refused with the key; numbers have no end in YAML."""
    for key in KEYS:
        place = re.sub(r"^methods\.", "methods.mine.", re.sub(r"^experiments\.", "experiments.headline.", key))
        with contextlib.suppress(UserError):
            with_value(problems, place.replace("evaluation.benchmarks.", "evaluation.benchmarks[0]."), value)


UNREADABLE = LIST["unreadable"] | {
    "deep lists": "[" * 100_000,
    "deep mappings": "{a: " * 100_000,
    "a deep value": f"name: t\ntitle: {'[' * 5000}{']' * 5000}\n",
    "an integer without end": f"name: t\nseeds: [{'9' * 5000}]\n",
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_is_no_study_is_refused(tmp_path, text):
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(str(path))) as refused:
        load_study(path)
    assert len(str(refused.value)) < 1500


def test_deep_lines_of_problems_are_refused_with_their_number(problems, capsys):
    path = problems / "deep.jsonl"
    path.write_text("[" * 100_000 + "\n")
    data = {"train": ["deep.jsonl"], "root": str(problems), "train_size": 2}
    study = merge(VALID, {"data": data, "model": {"warm_start": {"steps": 0}}})
    checked = write_study(problems / "study.yaml", study)
    for command in (["check", str(checked)], ["grade", str(path), "--out", str(problems / "graded.jsonl")]):
        assert main(command) == 2
        assert re.search(r"deep\.jsonl, line 1: ", capsys.readouterr().err), command
