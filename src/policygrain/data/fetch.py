"""Downloads, verifies and converts problem sets from their public sources; existing files are not replaced."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from ..errors import UserError
from ..files import atomic_text
from .convert import convert
from .registry import Dataset, GitHome, HubHome
from .set_files import check, content, content_digest, find, how_to_get

MIRROR_VARIABLE = "POLICYGRAIN_MIRROR"
GITHUB = "https://raw.githubusercontent.com"
TIMEOUT = 60  # seconds without data


def fetch(dataset: Dataset, root: Path) -> str:
    """Fetch a set into the folder ``root``; returns a message.

    UserError if the set has no known source, the network fails, or the source is not the pinned one.
    """
    present = find(dataset, root)
    if present is not None:
        if faults := check(dataset, root):
            raise UserError(f"{faults[0]}. It is not overwritten; move it away and fetch again.")
        return f"{present}: there already"
    if dataset.home is None:
        raise UserError(how_to_get(dataset, root))
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{root}: cannot be created: {error.strerror}.") from error
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(dataset.home, GitHome):
            files = [_from_git(dataset.name, dataset.home, Path(folder))]
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


def _from_git(name: str, home: GitHome, folder: Path) -> Path:
    """Download a file of a repository into ``folder`` and verify its blob id."""
    base = os.environ.get(MIRROR_VARIABLE, GITHUB).rstrip("/")
    url = f"{base}/{home.repository}/{home.commit}/{urllib.parse.quote(home.path)}"
    content = download(url, name)
    if (actual := blob_id(content)) != home.blob:
        raise UserError(f"{name}: wrong checksum: {url} has Git blob id {actual}, the registry says {home.blob}.")
    path = folder / Path(home.path).name
    path.write_bytes(content)
    return path


def download(url: str, label: str) -> bytes:
    """The content of ``url``, by the proxies that the environment names. UserError if it fails."""
    request = urllib.request.Request(url, headers={"User-Agent": "policygrain"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            content: bytes = response.read()
            return content
    except urllib.error.HTTPError as error:
        raise UserError(f"{label}: {url}: the server answered {error.code} {error.reason}.") from error
    except (OSError, http.client.HTTPException) as error:
        fault = str(getattr(error, "reason", None) or error or type(error).__name__)
        raise UserError(
            f"{label}: {url} cannot be fetched: {fault}. Check the network, or set a proxy (HTTPS_PROXY) or a mirror "
            f"({MIRROR_VARIABLE})."
        ) from error


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
