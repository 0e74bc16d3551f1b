"""Writes docs/configuration.md and the JSON schema for editors from the keys of study files: python docs/keys.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from policygrain.objective import Method, MtpHeads, Sampler
from policygrain.objective.method import CHOICES
from policygrain.study.schema import Name, Study

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
NAMES = {
    "training_data": "training problems",
    "benchmarks": "benchmark problems",
    "start_model": "initial models",
    "run": "training runs",
    "evaluation": "evaluations",
    "figures": "figures and tables",
    "tracking": "MLflow",
}


class OwnPart(BaseModel):
    """A function of your own, with its keyword parameters."""

    model_config = ConfigDict(extra="allow")
    name: str = Field(pattern=":", description="package.module:function")


def method_changes() -> type[BaseModel]:
    """What a study file may say of a method: parts by their names, or with parameters."""
    keys: dict[str, Any] = {}
    types = get_type_hints(Method)
    for kind in (Sampler, MtpHeads, *(kind for choices in CHOICES.values() for kind in choices.values())):
        kind.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[union-attr]
    for field in fields(Method):
        if (choices := CHOICES.get(field.name)) is not None:
            name: Any = Literal[tuple(choices)] | Annotated[str, Field(pattern=":")]
            part: Any = Union[(name, OwnPart, *choices.values())]
            types[field.name] = {"clip": part | None, "penalties": list[part] | None}.get(field.name, part)
        keys[field.name] = types[field.name], Field(None, **field.metadata)
    del keys["name"]  # the key under which it stands
    return create_model("MethodChanges", __config__=ConfigDict(extra="forbid"), **keys)


# The methods of a study that was read are finished; those of a file are changes.
METHODS: Any = (dict[Name, method_changes()], Study.model_fields["methods"])  # type: ignore[misc]
WRITTEN = create_model("Study", __base__=Study, __doc__=Study.__doc__, methods=METHODS)
SCHEMA: dict[str, Any] = WRITTEN.model_json_schema()


def rows(section: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The rows of the keys of a section, and of the sections in it."""
    for name, found in section["properties"].items():
        key, text = f"{prefix}{name}", found["description"]
        depends = ", ".join(NAMES[one] for one in found["decides"]) or "nothing" if "decides" in found else ""
        if (inside := _section(found)) is not None:
            key += inside[0]
            yield f"| **`{key}`** | | | {text} | {depends} |"
            yield from rows(inside[1], f"{key}.")
        else:
            default = f"`{json.dumps(found['default'])}`" if "default" in found else "required"
            yield f"| `{key}` | {_type(found)} | {default} | {text} | {depends} |"


def _section(found: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The section that is a key's value, an item of it or a value in it, after `[]` or `.NAME`; None for other keys."""
    if "$ref" in found:
        return "", _resolved(found)
    optional = [one for one in found.get("anyOf", ()) if one != {"type": "null"}]
    inner = [("", optional[0])] if len(optional) == 1 else []
    inner += [("[]", found["items"])] if "items" in found else []
    inner += [(".NAME", one) for one in found.get("patternProperties", {}).values()]
    return next(((mark + section[0], section[1]) for mark, one in inner if (section := _section(one))), None)


def _resolved(found: dict[str, Any]) -> dict[str, Any]:
    definition: dict[str, Any] = SCHEMA["$defs"][found["$ref"].removeprefix("#/$defs/")]
    return definition


def _type(found: dict[str, Any]) -> str:
    """The type of a key without its bounds."""
    if "anyOf" in found:
        return " or ".join(dict.fromkeys(map(_type, found["anyOf"])))
    if "enum" in found:
        return ", ".join(f"`{value}`" for value in found["enum"])
    if found.get("type") == "array":
        return f"list of {_type(found.get('items') or found['prefixItems'][0])}"
    return {"object": "mapping"}.get(kind := found.get("type", "mapping"), kind)


def pages() -> dict[Path, str]:
    """File → its content."""
    page = HEAD + "".join(f"{row}\n" for row in rows(SCHEMA))
    schema = json.dumps(SCHEMA, indent=1) + "\n"
    return {ROOT / "docs/configuration.md": page, ROOT / "workflow/schemas/study.schema.json": schema}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
