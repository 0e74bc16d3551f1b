"""What was found, and how it is printed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..errors import UserError


@dataclass(frozen=True)
class Finding:
    """What was looked at and found; ``change`` says what to do where it is not in order."""

    what: str
    found: str
    state: Literal["ok", "note", "wrong"] = "ok"
    change: str = ""

    def __str__(self) -> str:
        arrow = f"\n{'':18}→ {self.change}" if self.change else ""
        return f"{self.state:5}  {self.what:9}  {self.found}{arrow}"


def examine(findings: Iterable[Finding]) -> None:
    """Print findings as they come. UserError at the end when something is wrong."""
    wrong = 0
    for finding in findings:
        print(finding, flush=True)
        wrong += finding.state == "wrong"
    if wrong:
        raise UserError(f"doctor: {wrong} {'thing is' if wrong == 1 else 'things are'} wrong, see above.")
