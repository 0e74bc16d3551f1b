"""Downloads problem sets from their pinned sources, verifies and converts them; existing files are not replaced."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import json
import os
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import UserError
from . import published
from .problem import Problem, as_row, write_problems
from .sets import ProblemSet, check_file, faults_of

MIRROR_VARIABLE = "POLICYGRAIN_MIRROR"
TIMEOUT = 60  # seconds without data


def fetch(of: ProblemSet, root: Path) -> str:
    """Fetch a set into the folder ``root``; returns a message.

    UserError if the network fails, or if the source or the problems made of it are not the pinned ones.
    """
    out = root / of.file
    if out.is_file():
        if faults := check_file(of, root):
            raise UserError(f"{faults[0]}. It is not overwritten; move it away and fetch again.")
        return f"{out}: there already"
    problems = convert(of, _published(of))
    if faults := faults_of(of, [as_row(problem) for problem in problems]):
        raise UserError(f"{of.name}: the source is the pinned one, but makes {'; '.join(faults)}. Please report it.")
    write_problems(out, problems)
    return f"{out}: {len(problems)} problems"


def convert(of: ProblemSet, content: bytes) -> list[Problem]:
    """The problems of a set, of the content of its published file. UserError where it is not as expected."""
    try:
        problems = list(getattr(published, of.name)(_rows(of.github, content)))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{of.name}: a row of its source is not as expected: {error!r}. Please report it.") from error
    problems = [replace(p, problem=p.problem.strip(), answer=p.answer.strip(), source=of.name) for p in problems]
    if empty := [p.id for p in problems if not (p.problem and p.answer)]:
        raise UserError(f"{of.name}: problem or answer of {empty[0]} is empty in its source. Please report it.")
    return problems


def _rows(name: str, content: bytes) -> Iterator[Any]:
    """The rows of a published file in JSON Lines (perhaps compressed), in JSON or in Parquet."""
    if name.endswith(".parquet"):
        import pandas

        return iter(pandas.read_parquet(io.BytesIO(content)).to_dict("records"))
    if name.endswith(".json"):
        return iter(json.loads(content))
    text = gzip.decompress(content) if name.endswith(".gz") else content
    return map(json.loads, text.splitlines())


def _published(of: ProblemSet) -> bytes:
    """The published file. UserError if it cannot be downloaded or is not the pinned one."""
    base = os.environ.get(MIRROR_VARIABLE, "https://raw.githubusercontent.com").rstrip("/")
    url = f"{base}/{urllib.parse.quote(of.github)}"
    request = urllib.request.Request(url, headers={"User-Agent": "policygrain"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            content: bytes = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"{of.name}: {url} cannot be fetched: {error or type(error).__name__}. Check the network, or set a proxy "
            f"(HTTPS_PROXY) or a mirror ({MIRROR_VARIABLE})."
        ) from error
    if (actual := blob_id(content)) != of.blob:
        raise UserError(f"{of.name}: wrong checksum: {url} has Git blob id {actual} instead of {of.blob}.")
    return content


def blob_id(content: bytes) -> str:
    """Git's blob id of a file: SHA-1 over its length and bytes."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
