"""Files that say that a job has ended."""

from __future__ import annotations

from pathlib import Path

from policygrain.files import read_json
from policygrain.results.done import begin, write_done

OLD, NEW = "0" * 16, "f" * 16


def make(folder: Path, name: str, *results: str) -> Path:
    path = folder / f"{name}.json"
    write_done(path, dict.fromkeys(results, "digest"))
    return path


def test_a_file_has_what_the_job_made(tmp_path: Path) -> None:
    path = make(tmp_path / "train" / "grpo", f"0-{NEW}", "grpo/seed0")
    assert read_json(path)["results"] == {"grpo/seed0": "digest"}


def test_a_job_removes_its_file_of_other_settings_and_no_other(tmp_path: Path) -> None:
    own, old = make(tmp_path, f"0-{NEW}", "grpo/seed0"), make(tmp_path, f"0-{OLD}", "grpo/seed0")
    others = [make(tmp_path, f"1-{OLD}", "grpo/seed1"), make(tmp_path, f"0+1-{OLD[1:]}", "x"), make(tmp_path, "notes")]
    begin(own, ["grpo/seed0"])
    assert own.exists() and not old.exists() and all(path.exists() for path in others)


def test_a_job_removes_files_of_jobs_that_were_divided_differently(tmp_path: Path) -> None:
    """Seeds 0 and 1 were trained by one process; now seed 1 is trained alone, from other settings."""
    both = make(tmp_path, f"0+1-{OLD}", "grpo/seed0", "grpo/seed1")
    other = make(tmp_path, f"2-{OLD}", "grpo/seed2")
    begin(tmp_path / f"1-{NEW}.json", ["grpo/seed1"])
    assert not both.exists() and other.exists()


def test_names_with_signs_of_patterns_are_taken_as_they_are(tmp_path: Path) -> None:
    old, other = make(tmp_path, f"a+b-{OLD}", "a"), make(tmp_path, f"aab-{OLD}", "b")
    begin(tmp_path / f"a+b-{NEW}.json", [])
    assert not old.exists() and other.exists()


def test_a_file_that_cannot_be_read_names_no_results(tmp_path: Path) -> None:
    broken = tmp_path / f"1-{OLD}.json"
    broken.write_text("{")
    begin(tmp_path / f"0-{NEW}.json", ["grpo/seed1"])
    assert broken.exists()
