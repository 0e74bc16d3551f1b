"""Writes docs/configuration.md and the JSON schema for editors from the keys of study files: python docs/keys.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from policygrain.study.schema import Study
from policygrain.study.sections import Artefact, decides, marker_of, section_of

ROOT = Path(__file__).resolve().parents[1]

HEAD = """# Configuration

Every key of a study file; `make schema` writes this page. Unknown keys are errors. Relative
paths are relative to the working directory; `base` is relative to the file that contains it.

The last column says which outputs depend directly on a key. When its value changes, `snakemake all` computes these
outputs again, and everything made from them. Only what the change affects is computed again: a changed method retrains
only its own runs. Changing a key on which nothing depends, such as memory or threads, recomputes nothing.

| key | type | default | description | what depends on it |
|---|---|---|---|---|
"""
NAMES: dict[Artefact, str] = {
    "training_data": "training problems",
    "benchmarks": "benchmark problems",
    "start_model": "initial models",
    "run": "training runs",
    "evaluation": "evaluations",
    "figures": "figures and tables",
    "tracking": "MLflow",
}


def markdown() -> str:
    """All keys with type, default, description and dependent outputs, as a Markdown table."""
    return HEAD + "".join(f"{row}\n" for row in _rows(Study, ""))


def _rows(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        section = section_of(field.annotation)
        if section is not None:
            key += marker_of(field)
            yield f"| **`{key}`** | | | {field.description} | {_dependents(field)} |"
            yield from _rows(section, f"{key}.")
            continue
        default = "required" if field.default is PydanticUndefined else f"`{field.default!r}`"
        yield f"| `{key}` | {_type(field.annotation)} | {default} | {field.description} | {_dependents(field)} |"


def _dependents(field: FieldInfo) -> str:
    """Outputs that depend on a key directly; empty for a section and for the keys of a method."""
    direct = decides(field)
    return "" if direct is None else ", ".join(NAMES[artefact] for artefact in direct) or "nothing"


def _type(annotation: Any) -> str:
    """The type of a key without its bounds."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin in (Union, UnionType):
        return " or ".join(map(_type, arguments))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_type, arguments))}]"
    names: dict[Any, str] = {type(None): "None", ...: "..."}
    return names[annotation] if annotation in names else str(getattr(annotation, "__name__", annotation))


def schema() -> str:
    """The JSON schema of study files."""
    return json.dumps(Study.model_json_schema(), indent=1) + "\n"


if __name__ == "__main__":
    (ROOT / "docs/configuration.md").write_text(markdown())
    (ROOT / "workflow/schemas/study.schema.json").write_text(schema())
