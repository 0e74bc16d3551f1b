"""Identities of initial models, by folder or by name on the Hugging Face hub, so that changes are noticed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from . import digests
from .errors import UserError

if TYPE_CHECKING:
    from .study.schema import Model

_COMMIT = re.compile(r"[0-9a-f]{40}")


def identity(start: str, revision: str | None = None, remembered: bool = False) -> str:
    """The digest of a model folder, or the commit of a model on the hub.

    ``remembered``: digests of large files that have not changed since are not computed again. UserError if there is no
    such model.
    """
    folder = Path(start)
    return digests.of_model(folder, remembered=remembered) if folder.is_dir() else commit_of(start, revision)


def pinned(model: Model) -> Model:
    """The model with the present commit of its name as revision; a folder or a tiny model is unchanged."""
    if model.start == "tiny" or Path(model.start).is_dir():
        return model
    return model.model_copy(update={"revision": commit_of(model.start, model.revision)})


def commit_of(name: str, revision: str | None = None) -> str:
    """The commit of a branch, tag or commit: of this machine's cache, else of the hub, whose answer is then cached."""
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    return config_of(name, revision).parent.name


def config_of(name: str, revision: str | None = None, fetch: str = "") -> Path:
    """The `config.json` of a model in the cache, else from the hub. UserError, which names the command ``fetch``."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json", revision=revision)
        if isinstance(cached, str):
            return Path(cached)
        return Path(hf_hub_download(name, "config.json", revision=revision, etag_timeout=10))
    except (HFValidationError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        fetch = fetch or f"hf download {name}" + (f" --revision {revision}" if revision else "")
        raise UserError(
            f"model.start: {name!r} is neither a folder nor a model in this machine's cache, and the hub does not "
            f"provide it ({reason}). Fetch it where there is a network: `{fetch}`."
        ) from error
