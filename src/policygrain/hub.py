"""Initial models in a folder or on the Hugging Face hub: their identities, by which changes are noticed, and files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from . import digests
from .errors import UserError

if TYPE_CHECKING:
    from .study.schema import Model

# Errors of the hub's client, which have no narrower common base classes.
HUB_ERRORS = (OSError, ValueError, RuntimeError)


def identity(start: str, revision: str | None = None) -> str:
    """The digest of a model folder, or the commit that a branch, a tag or a commit names. UserError for neither."""
    if (folder := Path(start)).is_dir():
        return digests.of_model(folder)
    return revision if revision and re.fullmatch(r"[0-9a-f]{40}", revision) else config_of(start, revision).parent.name


def pinned(model: Model) -> Model:
    """The model with the present commit of its name as revision; a folder or a model made here is unchanged."""
    if model.is_made or Path(model.start).is_dir():
        return model
    return model.model_copy(update={"revision": identity(model.start, model.revision)})


def config_of(name: str, revision: str | None = None, offline: bool = False) -> Path:
    """`config.json` of a model in a folder, the local cache or, unless ``offline``, the hub. UserError if none."""
    from huggingface_hub import hf_hub_download

    if (path := Path(name, "config.json")).is_file():
        return path
    hub = ""
    for local in (True,) if offline else (True, False):
        try:
            return Path(hf_hub_download(name, path.name, revision=revision, local_files_only=local, etag_timeout=10))
        except HUB_ERRORS as error:
            reason = str(error).strip().partition("\n")[0]
            hub = "" if local else f", and the hub does not provide it ({reason})"
    fetch = f"Fetch it where there is a network: `hf download {name}{f' --revision {revision}' if revision else ''}`."
    raise UserError(
        f"the model {name!r} is neither a folder with a config.json nor in this machine's cache{hub}. {fetch}"
    )


def local_copy(name: str, revision: str | None = None) -> Path:
    """The folder of a model, which is downloaded if it is on the hub. UserError if there is none."""
    from huggingface_hub import snapshot_download

    folder = config_of(name, revision).parent
    if folder != Path(name):
        try:
            snapshot_download(name, revision=folder.name, ignore_patterns=["*.gguf", "*.onnx", "*.msgpack"])
        except HUB_ERRORS as error:
            raise UserError(f"the model {name!r} cannot be downloaded: {error}") from error
        if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
            raise UserError(f"the model {name!r}: this machine's cache has no weights of it: `hf download {name}`.")
    return folder
