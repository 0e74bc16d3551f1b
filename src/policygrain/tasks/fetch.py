"""Problem sets from their public homes: downloaded, verified, converted; what is there and right is left alone."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UserError
from ..files import atomic_text
from ..progress import Progress
from .check import check, content_digest, find, how_to_get
from .convert import convert
from .registry import Dataset, GitHome, HubHome

MIRROR_VARIABLE = "POLICYGRAIN_MIRROR"
GITHUB = "https://raw.githubusercontent.com"
BLOCK = 1 << 16  # bytes
ATTEMPTS = 3  # connections per file, each going on where the one before broke
TIMEOUT = 60  # seconds without a byte


def fetch(dataset: Dataset, root: Path) -> str:
    """Bring a set into ``root`` and say in a few words what was done.

    Raises UserError where the set has no known home, the network fails, or what comes is not what is pinned.
    """
    present = find(dataset, root)
    if present is not None:
        faults = check(dataset, root).faults
        if not faults:
            return f"{present}: there already"
        raise UserError(f"{faults[0]}. It is not overwritten; move it away and fetch again.")
    if dataset.home is None:
        raise UserError(how_to_get(dataset, root))
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{root}: cannot be made: {error.strerror}.") from error
    if isinstance(dataset.home, GitHome):
        files = [_from_git(dataset.name, dataset.home, root)]
    else:
        files = _from_hub(dataset.name, dataset.home)
    rows = convert(dataset, files)
    if len(rows) != dataset.count:
        raise UserError(f"{dataset.name}: {len(rows)} problems in its source instead of {dataset.count}.")
    digest = content_digest((row["problem"], row["answer"]) for row in rows)
    if dataset.content is not None and digest != dataset.content:
        raise UserError(
            f"{dataset.name}: the source is the pinned one, but its problems, as converted here, have digest "
            f"{digest[:12]}… instead of {dataset.content[:12]}…: the registry's mapping of columns is wrong for it "
            f"({dataset.fields.checked}). Nothing was written; please report it."
        )
    out = root / dataset.file
    atomic_text(out, "".join(json.dumps(row, ensure_ascii=False, default=_plain) + "\n" for row in rows))
    if isinstance(dataset.home, GitHome):
        files[0].unlink()
    return f"{out}: {len(rows)} problems"


def _plain(value: object) -> object:
    """What Parquet gives as NumPy's own, as JSON knows it."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} in a problem set")


# ---- GitHub ---------------------------------------------------------------------------------------------------------


def blob_id(content: bytes) -> str:
    """What Git calls a file of this content: SHA-1 over its length and bytes."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _from_git(name: str, home: GitHome, root: Path) -> Path:
    """The file as it is in the repository, verified. The part that is there already is not asked for again."""
    base = os.environ.get(MIRROR_VARIABLE, GITHUB).rstrip("/")
    url = f"{base}/{home.repository}/{home.commit}/{urllib.parse.quote(home.path)}"
    source = root / f".{name}-{home.blob[:12]}{Path(home.path).suffix}"
    if not source.exists():
        part = source.with_name(f"{source.name}.part")
        download(url, part, name)
        part.replace(source)
    actual = blob_id(source.read_bytes())
    if actual != home.blob:
        source.unlink()
        raise UserError(
            f"{name}: wrong checksum: {url} has Git blob id {actual}, the registry says {home.blob}. "
            "It was thrown away."
        )
    return source


@dataclass
class _Transfer:
    """One file on its way: ``total`` bytes in all, once the server has said so."""

    url: str
    part: Path
    total: int | None = None
    faults: list[str] = field(default_factory=list)

    @property
    def have(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    @property
    def done(self) -> bool:
        return self.total is not None and self.have == self.total

    def open(self) -> http.client.HTTPResponse | None:
        """The answer to a request for what is missing, and ``total``; None where nothing is missing."""
        # A compressed answer would make byte ranges mean something else.
        request = urllib.request.Request(self.url, headers={"Accept-Encoding": "identity", "User-Agent": "policygrain"})
        if have := self.have:
            request.add_header("Range", f"bytes={have}-")
        try:
            # urllib's own opener: it reads the usual proxy variables.
            response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and have:
                # Longer than the file, or all of it: the checksum decides, and a wrong part is thrown away there.
                self.total = have
                return None
            raise
        if have and response.status != http.client.PARTIAL_CONTENT:
            self.part.unlink()  # the server knows no ranges and sends everything
        length = response.headers.get("Content-Length")
        self.total = self.have + int(length) if length is not None else None
        return response

    def blocks(self, response: http.client.HTTPResponse) -> Iterator[int]:
        """Append what comes to the part; yields after each block."""
        with response, self.part.open("ab") as file:
            while block := response.read(BLOCK):
                file.write(block)
                yield len(block)
        if self.total is None:
            self.total = self.have


def download(url: str, part: Path, label: str) -> None:
    """Bring ``url`` into ``part``, going on after the bytes that are there. Raises UserError; the part is kept then."""
    transfer = _Transfer(url, part)
    for _ in range(ATTEMPTS):
        try:
            first = transfer.have // BLOCK
            response = transfer.open()
            if response is not None:
                total = -(-(transfer.total or transfer.have + 1) // BLOCK)
                for _ in Progress(transfer.blocks(response), f"{label}, blocks of 64 KiB", total, first):
                    pass
            if transfer.done:
                return
            transfer.faults.append(f"the connection ended after {transfer.have} of {transfer.total} bytes")
        except urllib.error.HTTPError as error:
            raise UserError(f"{label}: {url}: the server says {error.code} {error.reason}.") from error
        except (OSError, http.client.HTTPException) as error:
            transfer.faults.append(str(getattr(error, "reason", None) or error or type(error).__name__))
    raise UserError(
        f"{label}: {url} cannot be fetched: {transfer.faults[-1]}. Is there a network, a proxy (HTTPS_PROXY), a mirror "
        f"({MIRROR_VARIABLE})? What came is kept, the same command goes on from there."
    )


# ---- Hugging Face ---------------------------------------------------------------------------------------------------


def _from_hub(name: str, home: HubHome) -> list[Path]:
    """Files of a pinned revision, through the hub's own client: its cache, its mirror (HF_ENDPOINT), its proxies."""
    from huggingface_hub import hf_hub_download

    try:
        return [
            Path(hf_hub_download(home.dataset, file, repo_type="dataset", revision=home.revision))
            for file in home.files
        ]
    # The client's errors have no common ancestor but these; all of them mean that the file did not come.
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(f"{name}: {home.dataset} at {home.revision[:12]} cannot be fetched: {reason}") from error
