"""Downloads, verifies and converts problem sets from their public sources; files that are there are not replaced."""

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
from .check import check, content, content_digest, find, how_to_get
from .convert import convert
from .registry import Dataset, GitHome, HubHome

MIRROR_VARIABLE = "POLICYGRAIN_MIRROR"
GITHUB = "https://raw.githubusercontent.com"
BLOCK = 1 << 16  # bytes
ATTEMPTS = 3  # connections per file, each resuming the download
TIMEOUT = 60  # seconds without data


def fetch(dataset: Dataset, root: Path) -> str:
    """Fetch a set into the folder ``root``; returns what was done, as text.

    UserError if the set has no known source, the network fails, or the source is not the pinned one.
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
        raise UserError(f"{root}: cannot be created: {error.strerror}.") from error
    if isinstance(dataset.home, GitHome):
        files = [_from_git(dataset.name, dataset.home, root)]
    else:
        files = _from_hub(dataset.name, dataset.home)
    rows = convert(dataset, files)
    if len(rows) != dataset.count:
        raise UserError(f"{dataset.name}: {len(rows)} problems in its source instead of {dataset.count}.")
    digest = content_digest(map(content, rows))
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
    """Python values for NumPy's, which pandas reads from Parquet, so that they can be written as JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} in a problem set")


# ---- GitHub ---------------------------------------------------------------------------------------------------------


def blob_id(content: bytes) -> str:
    """Git's blob id of a file: SHA-1 over its length and bytes."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _from_git(name: str, home: GitHome, root: Path) -> Path:
    """Download a file of a repository and verify its blob id; a partial download is resumed."""
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
            f"{name}: wrong checksum: {url} has Git blob id {actual}, the registry says {home.blob}. It was deleted."
        )
    return source


@dataclass
class _Transfer:
    """The download of one file into ``part``; ``total`` is its size in bytes, once the server has sent it."""

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
        """Request the missing bytes and set ``total``; None if nothing is missing."""
        # Byte ranges of a compressed response would refer to the compressed bytes.
        request = urllib.request.Request(self.url, headers={"Accept-Encoding": "identity", "User-Agent": "policygrain"})
        if have := self.have:
            request.add_header("Range", f"bytes={have}-")
        try:
            # urllib's default opener uses the usual proxy variables.
            response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and have:
                # The part is complete or too long: the checksum decides, and a wrong file is deleted then.
                self.total = have
                return None
            raise
        if have and response.status != http.client.PARTIAL_CONTENT:
            self.part.unlink()  # the server does not support ranges and sends the whole file
        length = response.headers.get("Content-Length")
        self.total = self.have + int(length) if length is not None else None
        return response

    def blocks(self, response: http.client.HTTPResponse) -> Iterator[int]:
        """Append the response to the part; yields the size of each block."""
        with response, self.part.open("ab") as file:
            while block := response.read(BLOCK):
                file.write(block)
                yield len(block)
        if self.total is None:
            self.total = self.have


def download(url: str, part: Path, label: str) -> None:
    """Download ``url`` into ``part``, after the bytes that are there. UserError if it fails; the part is kept."""
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
            raise UserError(f"{label}: {url}: the server answered {error.code} {error.reason}.") from error
        except (OSError, http.client.HTTPException) as error:
            transfer.faults.append(str(getattr(error, "reason", None) or error or type(error).__name__))
    raise UserError(
        f"{label}: {url} cannot be fetched: {transfer.faults[-1]}. Check the network, or set a proxy (HTTPS_PROXY) or "
        f"a mirror ({MIRROR_VARIABLE}). The same command resumes the download."
    )


# ---- Hugging Face ---------------------------------------------------------------------------------------------------


def _from_hub(name: str, home: HubHome) -> list[Path]:
    """Download the files of a pinned revision with the hub's client, which uses its cache, HF_ENDPOINT and proxies."""
    from huggingface_hub import hf_hub_download

    try:
        return [
            Path(hf_hub_download(home.dataset, file, repo_type="dataset", revision=home.revision))
            for file in home.files
        ]
    # The client's errors have no narrower common base classes; all of them mean that the download failed.
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(f"{name}: {home.dataset} at {home.revision[:12]} cannot be fetched: {reason}") from error
