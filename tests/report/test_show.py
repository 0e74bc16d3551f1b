"""`policygrain show`: the numbers of the tables, and error messages."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from policygrain.analysis.evaluated_models import find
from policygrain.analysis.model_comparison import difference, summary
from policygrain.cli import main
from policygrain.report.show import WIDTH

from ..support.evaluations import COUNT, REST, RIGHT, UNREAD, WRONG, make_run


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["show", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    return printed(capsys, "--all", *arguments)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["show", *map(str, arguments)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("policygrain: ") and "Traceback" not in said
    return said


def test_the_tables_of_one_model(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, run)
    assert text == shown(capsys, run / "evaluation") == shown(capsys, run / "evaluation" / "records.json")
    # Scores 1, 0.5, 0: standard error √(1/4 / 3), Student's quantile 4.30, and Wilson's form keeps it within 0 and 100.
    c = 4.3027**2 / 12 / 0.25
    half = 50 * math.sqrt(c / (1 + c))
    assert f"50.0 [{50 - half:.1f}, {50 + half:.1f}]" == "50.0 [3.6, 96.4]"
    assert re.search(r"^count +2 +3 +50\.0 \[3\.6, 96\.4\] +50\.0 +66\.7 +25\.0$", text, flags=re.M)
    # One problem says next to nothing.
    assert re.search(r"^rest +2 +1 +0\.0 \[0\.0, 9\d\.\d\] +0\.0 +0\.0 +25\.0$", text, flags=re.M)
    assert "95% intervals over problems of one training seed" in text
    assert re.search(
        r"^benchmark +correct +incorrect +unparsable +timeout +error +truncated +tokens$", text, flags=re.M
    )
    assert re.search(r"^count +3 +2 +1 +0 +0 +50\.0 +10\.0$", text, flags=re.M)
    assert re.search(r"^rest +0 +0 +0 +1 +1 +50\.0 +10\.0$", text, flags=re.M)
    assert "Average of the benchmarks: 25.0 [" in text
    for fact in ("numeric-1", "temperature 1,", "digest-count", "seed0", "a machine", "python 3.11.7, torch 2.13.0"):
        assert fact in text
    assert "rest" not in shown(capsys, run, "--benchmark", "count")


def test_several_models_stand_side_by_side(run: Path, better: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, run, better)
    # Scores differ on one problem of three, by a half: no interval of three problems excludes 0.
    assert re.search(r"^  grpo/seed0 +50\.0 \[3\.6, 96\.4\]$", text, flags=re.M)
    there = re.search(r"^  tepo/seed0 +66\.7 \[\S+, \S+\] +\+16\.7 \[-(\S+), \+(\S+)\]$", text, flags=re.M)
    turned = shown(capsys, run, better, "--against", "tepo/seed0")
    back = re.search(r"^  grpo/seed0 +50\.0 \[3\.6, 96\.4\] +-16\.7 \[-(\S+), \+(\S+)\]$", turned, flags=re.M)
    assert there and back and there.groups() == back.groups()[::-1]
    assert "no 'dapo' here. There are: grpo/seed0, tepo/seed0" in refused(capsys, run, better, "--against", "dapo")


def test_several_models_fit_a_screen_with_their_average_first(
    run: Path, better: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, run, better)
    head, one, two = text.splitlines()[2:5]
    assert re.fullmatch(r" +average +− grpo/seed0 +count +rest", head)
    # The averages are those of two benchmarks: (50 + 0) / 2 and (66.7 + 0) / 2.
    assert re.fullmatch(r"grpo/seed0 +25\.0 \[\S+, \S+\] +50\.0 +0\.0", one)
    assert re.fullmatch(r"tepo/seed0 +33\.3 \[\S+, \S+\] +\+8\.3 \[\S+, \S+\] +66\.7 +0\.0", two)
    assert "--all" in text and len(text.splitlines()) == 7
    alone = printed(capsys, run, better, "--benchmark", "count")
    assert re.search(r"^tepo/seed0 +66\.7 \[\S+, \S+\] +\+16\.7 \[", alone, flags=re.M)


def test_benchmarks_that_do_not_fit_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"benchmark_{i}" for i in range(12)]
    runs = [make_run(tmp_path / f"arm{i}" / "seed0", dict.fromkeys(names, COUNT)) for i in (0, 1)]
    text = printed(capsys, *runs)
    shown_here = text.splitlines()[2].count("…")
    assert 0 < shown_here < 12 and f"{12 - shown_here} more benchmarks" in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_a_difference_that_excludes_zero_is_starred(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = make_run(tmp_path / "a", {"count": [[WRONG, WRONG]] * 8 + [[RIGHT, RIGHT]] * 2})
    b = make_run(tmp_path / "b", {"count": [[RIGHT, RIGHT]] * 10})
    assert re.search(
        r"^  b +100\.0 \[7\d\.\d, 100\.0\] +\+80\.0 \[\+1\d\.\d, \+9\d\.\d\] \*$", shown(capsys, a, b), flags=re.M
    )


def test_a_study_has_a_line_per_arm(
    tmp_path: Path, run: Path, better: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(
        tmp_path / "runs" / "grpo" / "seed1", {"count": [[RIGHT, RIGHT], [RIGHT, RIGHT], [RIGHT, RIGHT]], "rest": REST}
    )
    (entry, _) = entries = find([tmp_path])
    both = summary(entry, "count")
    assert both["accuracy"]["mean"] == 0.75 and both["pass_at"][2] == pytest.approx((2 / 3 + 1) / 2)
    assert both["outcomes"] == {RIGHT: 9, WRONG: 2, UNREAD: 1, "timeout": 0, "error": 0} and both["tokens"] == 10
    # Seed 0 is what they share.
    paired = difference(entries[1], entry, ["count"])
    assert paired is not None and paired.mean == pytest.approx(1 / 6)
    assert "seeds" in shown(capsys, tmp_path)
    # Initial models come first, then the arms by name.
    make_run(tmp_path / "start" / "seed0", {"count": COUNT, "rest": REST})
    assert re.search(r"^  start +1 +50\.0", shown(capsys, tmp_path), flags=re.M)


def test_nothing_is_wider_than_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"a_benchmark_with_quite_a_long_name_{i}" for i in range(7)]
    runs = [
        make_run(tmp_path / ("an_arm,with=settings," * 4 + str(i)) / "seed0", dict.fromkeys(names, COUNT))
        for i in (0, 1)
    ]
    for folder in runs:
        path = folder / "evaluation" / "records.json"
        file = json.loads(path.read_text())
        for record in file["records"]:
            record["pass_at"] = {str(2**k): 0.5 for k in range(10)}
        path.write_text(json.dumps(file))
    other = make_run(tmp_path / "a_folder_with_a_long_name" / "seed0", {names[0]: COUNT}, protocol={"seed": 8})
    text = (
        shown(capsys, runs[0]) + shown(capsys, *runs) + printed(capsys, *runs) + shown(capsys, *runs, other, "--anyway")
    )
    assert "pass@512" in text and max(map(len, text.splitlines())) <= WIDTH


def test_protocols_are_not_mixed_by_accident(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_run(tmp_path / "other", {"count": COUNT, "rest": REST}, protocol={"seed": 8})
    for extra in ([], ["--page", tmp_path / "x.html"]):
        assert "different protocols" in refused(capsys, run, other, *extra)
    text = shown(capsys, run, other, "--anyway")
    assert "THE PROTOCOLS DIFFER" in text and "seed: 7 in grpo/seed0; 8 in other" in text
    # Other problems of the same name are not paired; a benchmark that is left out is no difference.
    third = make_run(tmp_path / "third", {"count": COUNT, "rest": REST})
    path = third / "evaluation" / "records.json"
    path.write_text(path.read_text().replace("digest-count", "digest-of-others"))
    assert difference(*reversed(find([run, third])), ["count"]) is None
    assert "benchmarks.count.problems: digest-count in" in refused(capsys, run, third)
    assert "rest: 1 problems" in shown(capsys, run, third, "--benchmark", "rest")


def test_json_is_the_same_for_machines(run: Path, better: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(shown(capsys, run, better, "--json"))
    assert data["against"] == "grpo/seed0" and data["protocol_differences"] == []
    first, second = data["models"]
    assert first["benchmarks"]["count"]["accuracy"]["mean"] == 0.5 and "difference" not in first["benchmarks"]["count"]
    assert second["benchmarks"]["count"]["difference"]["mean"] == pytest.approx(1 / 6)
    assert second["protocols"][0]["grader"] == "numeric-1" and second["facts"][0]["hardware"] == "a machine"
