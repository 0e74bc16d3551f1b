"""Pages with a script of a test's own, which their content security policy allows by its digest."""

from __future__ import annotations

import base64
import hashlib
import re


def with_script(page: str, script: str) -> str:
    """``page`` with ``script`` at its end, allowed beside the page's own scripts."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page, count = re.subn(r"script-src (?:'none')?", f"script-src 'sha256-{digest}' ", page, count=1)
    assert count, "the page has a policy"
    return page.replace("</html>", f"<script>{script}</script></html>")
