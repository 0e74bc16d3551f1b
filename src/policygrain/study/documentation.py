"""Generates the configuration reference (docs/configuration.md) from the schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from .schema import Study

HEAD = """# Configuration

Every key of a study file; `policygrain schema --markdown` writes this page. Unknown keys are errors. Relative
paths are relative to the working directory; `base` is relative to the file that contains it.

| key | type | default | description |
|---|---|---|---|
"""


def markdown() -> str:
    """All keys with type, default and description, as a Markdown table."""
    return HEAD + "".join(f"{row}\n" for row in _rows(Study, ""))


def _rows(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        section = _section(field.annotation)
        if section is not None:
            marker = (
                "[]" if str(field.annotation).startswith("list") else ".NAME" if "dict" in str(field.annotation) else ""
            )
            yield f"| **`{key}{marker}`** | | | {field.description} |"
            yield from _rows(section, f"{key}{marker}.")
            continue
        kind = (
            getattr(field.annotation, "__name__", "") if isinstance(field.annotation, type) else str(field.annotation)
        )
        kind = kind.replace("typing.", "").replace("pathlib._local.", "").replace("pathlib.", "").split(", Gt")[0]
        default = "required" if field.default is PydanticUndefined else f"`{field.default!r}`"
        yield f"| `{key}` | {_plain(kind)} | {default} | {field.description} |"


def _plain(kind: str) -> str:
    kind = kind.replace("Annotated[", "").replace("|", "or").split(", FieldInfo")[0].split(", Ge")[0]
    return kind + "]" * (kind.count("[") - kind.count("]"))


def _section(annotation: Any) -> type[BaseModel] | None:
    """The section type of a field, of its list items or of its mapping values; None for other fields."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_section(a) for a in get_args(annotation))
    return next((f for f in found if f is not None), None)
