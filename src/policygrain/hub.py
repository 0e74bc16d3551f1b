"""Identities of initial models in a folder or on the Hugging Face hub, by which changes are noticed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import digests
from .errors import UserError

if TYPE_CHECKING:
    from .study.schema import Model

_COMMIT = re.compile(r"[0-9a-f]{40}")


def identity(start: str, revision: str | None = None, remembered: bool = False) -> str:
    """The digest of a model folder, or the commit of a model on the hub.

    ``remembered``: digests of large files that have not changed are read from a cache. UserError if there is no such
    model.
    """
    folder = Path(start)
    return digests.of_model(folder, remembered=remembered) if folder.is_dir() else commit_of(start, revision)


def pinned(model: Model) -> Model:
    """The model with the present commit of its name as revision; a folder or a tiny model is unchanged."""
    if model.start == "tiny" or Path(model.start).is_dir():
        return model
    return model.model_copy(update={"revision": commit_of(model.start, model.revision)})


def commit_of(name: str, revision: str | None = None) -> str:
    """The commit that a branch, a tag or a commit names: from this machine's cache, else from the hub, then cached."""
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    return config_of(name, revision).parent.name


def cached_config(start: str, revision: str | None = None) -> Path | None:
    """The `config.json` of a model folder, or of a model in this machine's cache; None if neither exists."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if (folder := Path(start)).is_dir():
        return folder / "config.json" if (folder / "config.json").is_file() else None
    try:
        cached = try_to_load_from_cache(start, "config.json", revision=revision)
    except HFValidationError:  # the path of a folder that does not exist
        return None
    return Path(cached) if isinstance(cached, str) else None


def config_of(name: str, revision: str | None = None, fetch: str = "") -> Path:
    """The `config.json` of a model in the cache, else from the hub.

    UserError if neither has it; its message names ``fetch``, the command that downloads the model.
    """
    from huggingface_hub import hf_hub_download

    if (cached := cached_config(name, revision)) is not None:
        return cached
    try:
        return Path(hf_hub_download(name, "config.json", revision=revision, etag_timeout=10))
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"model.start: {name!r} is neither a folder nor a model in this machine's cache, and the hub does not "
            f"provide it ({reason}). Fetch it where there is a network: `{fetch or download_command(name, revision)}`."
        ) from error


def download_command(name: str, revision: str | None = None) -> str:
    """The command that downloads a model into the cache."""
    return f"hf download {name}" + (f" --revision {revision}" if revision else "")


def read_config(path: Path) -> dict[str, Any]:
    """The content of a model's `config.json`. UserError if it cannot be read."""
    try:
        config: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, TypeError) as error:
        raise UserError(f"model.start: {path} cannot be read: {error}") from error
    return config
