"""Findings of the doctor, and how they are printed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..errors import UserError


@dataclass(frozen=True)
class Finding:
    """The result of one check: ``what`` was checked, what was ``found``, and what to ``change`` if it is a problem."""

    what: str
    found: str
    state: Literal["ok", "note", "wrong"] = "ok"
    change: str = ""

    def __str__(self) -> str:
        arrow = f"\n{'':18}→ {self.change}" if self.change else ""
        return f"{self.state:5}  {self.what:9}  {self.found}{arrow}"


def print_findings(findings: Iterable[Finding]) -> None:
    """Print each finding as soon as it is there. UserError at the end if one of them is `wrong`."""
    wrong = 0
    for finding in findings:
        print(finding, flush=True)
        wrong += finding.state == "wrong"
    if wrong:
        raise UserError(f"doctor: {wrong} {'thing is' if wrong == 1 else 'things are'} wrong, see above.")
