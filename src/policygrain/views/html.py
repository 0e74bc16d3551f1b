"""Self-contained HTML pages from Jinja2 templates."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources.abc import Traversable
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup


def render(template: Traversable, /, **values: Any) -> str:
    """The page of the file ``template``, such as `resources.files(__package__) / "page.html"`.

    Values are escaped. The filter `tojson` writes a value as JSON that is safe inside a script element.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    # ASCII only, no spaces. `tojson` also escapes "<", so that no text ends the script element or opens a comment.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment.from_string(template.read_text(encoding="utf-8")).render(**values)


def content_security_policy(*scripts: str) -> Markup:
    """A policy for a page that loads nothing and runs only ``scripts``, the exact texts of its script elements."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return Markup(
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}; "
        "base-uri 'none'; form-action 'none'"
    )
