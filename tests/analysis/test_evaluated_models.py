"""Evaluated models under paths: found, grouped, named, selected, and their protocols compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from policygrain.analysis.evaluated_models import (
    benchmarks_of,
    check_same_protocol,
    find,
    protocol_differences,
    select_benchmarks,
)
from policygrain.errors import UserError

from ..support.evaluations import COUNT, REST, RIGHT, make_run


def test_runs_evaluations_and_studies_are_found(tmp_path: Path) -> None:
    grpo = make_run(tmp_path / "runs" / "grpo" / "seed0", {"count": COUNT, "rest": REST})
    make_run(tmp_path / "runs" / "grpo" / "seed1", {"count": [[RIGHT, RIGHT]] * 3, "rest": REST})
    make_run(tmp_path / "runs" / "dapo" / "seed0", {"count": COUNT})
    make_run(tmp_path / "start" / "seed0", {"count": COUNT})
    make_run(tmp_path / "runs" / "dapo" / "seed0-old", {"count": COUNT})  # a copy, which is no seed
    for path in (grpo, grpo / "evaluation", grpo / "evaluation" / "records.json"):
        (group,) = find([path])
        assert (group.name, group.path, [m.seed for m in group.models]) == ("grpo/seed0", grpo, ["0"])
    groups = find([tmp_path])
    assert [(g.name, [m.seed for m in g.models]) for g in groups] == [
        ("start", ["0"]),
        ("dapo", ["0"]),
        ("grpo", ["0", "1"]),
    ]
    assert groups[2].scores("count").tolist() == [[1.0, 0.5, 0.0], [1.0, 1.0, 1.0]]
    assert groups[2].scores("count", ["1"]).tolist() == [[1.0, 1.0, 1.0]]
    assert benchmarks_of(groups) == ["count", "rest"] and list(groups[2].records("rest")) == ["0", "1"]


def test_a_group_of_unequal_problems_has_no_scores(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "grpo" / "seed0", {"count": COUNT})
    make_run(tmp_path / "runs" / "grpo" / "seed1", {"count": COUNT[:2]})
    with pytest.raises(UserError, match="grpo: its seeds were evaluated on different problems of count"):
        find([tmp_path])[0].scores("count")


def test_names_are_as_long_as_necessary(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / study / "runs" / "grpo" / "seed0", {"count": COUNT}) for study in ("laptop", "smoke")]
    assert [e.name for e in find(runs)] == ["laptop/grpo/seed0", "smoke/grpo/seed0"]
    assert [e.name for e in find(runs[:1])] == ["grpo/seed0"]
    with pytest.raises(UserError, match="is named twice"):
        find([runs[0], runs[0] / "evaluation"])


def test_what_is_no_evaluation_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", {"count": COUNT})
    (tmp_path / "empty" / "runs").mkdir(parents=True)
    for path, said in {
        tmp_path / "nowhere": "nowhere: no such file or folder",
        tmp_path / "empty": "empty: no evaluation here",
        run / "evaluation" / "count.jsonl": r"count\.jsonl: not a records\.json",
    }.items():
        with pytest.raises(UserError, match=said):
            find([path])


def test_benchmarks_are_selected_in_records_and_protocols(tmp_path: Path) -> None:
    groups = find([make_run(tmp_path / name, {"count": COUNT, "rest": REST}) for name in "ab"])
    select_benchmarks(groups, None)
    assert benchmarks_of(groups) == ["count", "rest"]
    select_benchmarks(iter(groups), ["rest"])
    assert benchmarks_of(groups) == ["rest"]
    assert all(list(m.protocol["benchmarks"]) == ["rest"] for g in groups for m in g.models)
    (only,) = select_benchmarks(find([tmp_path / "a", make_run(tmp_path / "c", {"count": COUNT})]), ["rest"])
    assert only.path.name == "a", "c has no record of it"
    with pytest.raises(UserError, match=r"--benchmark: no record of 'count' here\. There are: rest"):
        select_benchmarks(groups, ["count"])


def test_differences_of_protocols_are_lines(tmp_path: Path) -> None:
    """The model does not count; a benchmark that only one has does, until it is not selected."""
    a = make_run(tmp_path / "a", {"count": COUNT, "rest": REST})
    b = make_run(tmp_path / "b", {"count": COUNT, "rest": REST})
    other = make_run(tmp_path / "other", {"count": COUNT}, protocol={"seed": 8, "engine": "transformers"})
    assert protocol_differences(find([a, b])) == [] == check_same_protocol(find([a, b]), anyway=False)
    lines = protocol_differences(find([a, b, other]))
    assert lines[:2] == ["engine: vllm in a, b; transformers in other", "seed: 7 in a, b; 8 in other"]
    assert "benchmarks.rest.problems: digest-rest in a, b; (none) in other" in lines
    groups = find([a, b, other])
    select_benchmarks(groups, ["count"])
    assert protocol_differences(groups) == lines[:2] == check_same_protocol(groups, anyway=True)
    with pytest.raises(
        UserError, match=r"not compared \(use --anyway.*\n  engine: vllm in a, b; transformers in other\n"
    ):
        check_same_protocol(groups, anyway=False)
