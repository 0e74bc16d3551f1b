"""Marker files of finished jobs; the name contains the fingerprint of everything that the result depends on."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping
from pathlib import Path

from .schema import Done, write_record

FINGERPRINT = r"[0-9a-f]{16}"


def write_done(path: Path, results: Mapping[str, str]) -> None:
    """Write the marker file; remove those of the same job with other fingerprints, whose results are overwritten."""
    if found := re.fullmatch(rf"(.+-){FINGERPRINT}", path.stem):
        for other in path.parent.glob(f"{glob.escape(found[1])}*{path.suffix}"):
            if other != path and re.fullmatch(rf"{re.escape(found[1])}{FINGERPRINT}", other.stem):
                other.unlink(missing_ok=True)
    write_record(path, Done(results=dict(results)))
