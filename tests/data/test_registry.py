"""The registry of problem sets: its entries, their validation, and the commands that list and fetch them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from policygrain.cli import main
from policygrain.data import registry
from policygrain.data.families import FAMILIES
from policygrain.errors import UserError

from ..support.problem_sets import RECORDED, made_up

CODE = ("humaneval", "humaneval_plus", "mbpp_plus")


def test_names_and_files_are_unique_and_recorded_sets_have_digests() -> None:
    assert {*RECORDED, *CODE, "omni_math", "math"} == set(registry.names())
    assert not set(registry.names()) & set(FAMILIES)
    files = [f for name in registry.names() for f in (registry.dataset(name).file, *registry.dataset(name).aliases)]
    assert len(files) == len(set(files))
    for name in RECORDED:
        assert registry.dataset(name).content
    for name in CODE:
        assert registry.dataset(name).content and registry.dataset(name).code


@pytest.mark.parametrize("name", registry.names())
def test_benchmarks_have_the_sampling_of_the_published_studies(name: str) -> None:
    """2505.22617: AIME and AMC avg@32 at temperature 0.6, the others greedy."""
    chosen = registry.protocol(name)
    if registry.dataset(name).role == "training":
        assert chosen is None
    elif name.startswith(("aime", "amc")):
        assert chosen and (chosen.n, chosen.temperature) == (32, 0.6)
    else:
        assert chosen and (chosen.n, chosen.temperature) == (1, 0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": "red"}, "colour: Extra inputs"),
        ({"version": 2}, "must describe version 2"),
        ({"role": "benchmark"}, "has `sampling` and `metric`"),
        ({"answers": {"list_answer": "many"}}, "column 'many' is not kept"),
        ({"content": "abc"}, "content: String should match"),
    ],
)
def test_a_wrong_registry_file_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"problem set made_up(.|\n)*{re.escape(message)}"):
        made_up(**changes)


def test_an_unknown_conversion_is_named() -> None:
    fields = made_up().fields.model_dump()
    fields["answer"]["convert"] = ["last_box"]
    with pytest.raises(UserError, match=r"'last_box'.*Did you mean 'last_boxed'"):
        made_up(fields=fields)


def test_list_and_fetch_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["data", "list", "--root", str(tmp_path)]) == 0
    assert re.search(r"math500 +benchmark +1 +500 +no +math500\.jsonl", capsys.readouterr().out)
    assert main(["data", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["aime25"]["count"] == 30
    monkeypatch.delenv("POLICYGRAIN_DATA", raising=False)
    assert main(["data", "fetch", "math500"]) == 2
    assert "name the folder to download into: --root" in capsys.readouterr().err
    monkeypatch.setenv("POLICYGRAIN_MIRROR", "http://127.0.0.1:1")
    assert main(["data", "fetch", "math500", "aime24", "--root", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert "math500: http" in shown and "aime24: http" in shown and "Traceback" not in shown
