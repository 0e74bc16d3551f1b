"""Marker files of finished jobs; the name contains the fingerprint of everything that the result depends on."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from .schema import Done, write_record

FINGERPRINT = r"[0-9a-f]{16}"


def begin(path: Path, results: Collection[str]) -> None:
    """Remove the files of finished jobs whose results are about to be overwritten; ``results`` names them.

    These are files of the same job with other fingerprints, and of jobs that were divided differently.
    """
    job = re.fullmatch(rf"(.+-){FINGERPRINT}", path.stem)
    for other in path.parent.glob(f"*{path.suffix}") if job else ():
        same_job = job and re.fullmatch(rf"{re.escape(job[1])}{FINGERPRINT}", other.stem)
        if other != path and (same_job or _results_of(other) & set(results)):
            other.unlink(missing_ok=True)


def write_done(path: Path, results: Mapping[str, str]) -> None:
    """Write the file at the end of a job: result → its digest or key."""
    write_record(path, Done(results=dict(results)))


def _results_of(path: Path) -> set[str]:
    """The results that a finished job names; empty where its file cannot be read."""
    try:
        return set(json.loads(path.read_bytes())["results"])
    except (OSError, ValueError, KeyError, TypeError):
        return set()
