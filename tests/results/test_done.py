"""Files of finished jobs: one per job, named by its fingerprint."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policygrain.results.done import write_done
from policygrain.results.layout import StudyFolder
from policygrain.results.schema import Done, read_record

OLD, NEW = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path)


def test_older_files_of_the_same_job_are_removed(folder: StudyFolder) -> None:
    first, second = (folder.done("train", "grpo-seed0", fingerprint) for fingerprint in (OLD, NEW))
    write_done(first, {"grpo/seed0": "key"})
    write_done(second, {"grpo/seed0": "other"})
    assert list(first.parent.iterdir()) == [second]
    assert read_record(Done, second, "").results == {"grpo/seed0": "other"}
    write_done(second, {"grpo/seed0": "other"})
    assert list(first.parent.iterdir()) == [second]


@pytest.mark.parametrize(
    "other",
    [
        "grpo-seed0-1",  # of more seeds
        "grpo",
        "grpo-seed",
        "grpo-seed01",
        "x-grpo-seed0",
        "grpo-seed0-0123456789abcdef",  # a name that ends like a fingerprint
        "*",
        "[g]rpo-seed0",
    ],
)
def test_files_of_other_jobs_stay(folder: StudyFolder, other: str) -> None:
    for mine, theirs in (("grpo-seed0", other), (other, "grpo-seed0")):
        kept = folder.done("train", theirs, OLD)
        elsewhere = folder.done("probe", mine, OLD)
        write_done(kept, {})
        write_done(elsewhere, {})
        write_done(folder.done("train", mine, NEW), {})
        assert kept.exists() and elsewhere.exists()
        for path in kept.parent.iterdir():
            path.unlink()


def test_a_file_without_a_fingerprint_is_only_written(folder: StudyFolder) -> None:
    """As `--done` of a command that is called by hand."""
    kept = folder.done("train", "grpo-seed0", OLD)
    write_done(kept, {})
    for name in ("done.json", "grpo-seed0.json", "grpo-seed0-0123.json"):
        write_done(kept.with_name(name), {"model": "digest"})
    assert {path.name for path in kept.parent.iterdir()} == {
        kept.name,
        "done.json",
        "grpo-seed0.json",
        "grpo-seed0-0123.json",
    }


NAMES = st.lists(st.sampled_from(["a", "b", "seed0", "[x]", "*", OLD]), min_size=1, max_size=3).map("-".join)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.tuples(NAMES, st.sampled_from([OLD, NEW])), max_size=8))
def test_the_newest_file_of_each_job_is_what_is_left(
    tmp_path_factory: pytest.TempPathFactory, jobs: list[tuple[str, str]]
) -> None:
    folder = StudyFolder(tmp_path_factory.mktemp("done"))
    for name, fingerprint in jobs:
        write_done(folder.done("train", name, fingerprint), {})
    parent = folder.done("train", "x", OLD).parent
    left = {path.name for path in parent.iterdir()} if jobs else set()
    assert left == {folder.done("train", name, fingerprint).name for name, fingerprint in dict(jobs).items()}
