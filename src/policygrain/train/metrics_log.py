"""The records of a run: metrics that only the seed decides, and timings that the machine decides, apart."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import atomic_text
from .ranks import is_rank_0, on_rank_0


class MetricsLog:
    """Appends JSON Lines to `metrics.jsonl` (reproducible) and `timings.jsonl` (not), one line a step."""

    def __init__(self, run_dir: Path, resume_at: int) -> None:
        self.run_dir = run_dir
        on_rank_0(lambda: [self._cut(run_dir / f"{name}.jsonl", resume_at) for name in ("metrics", "timings")])

    @staticmethod
    def _cut(path: Path, resume_at: int) -> None:
        """Steps from ``resume_at`` on will be done again, so each appears once; a half-written last line goes too."""
        kept = []
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                if json.loads(line)["step"] < resume_at:
                    kept.append(line + "\n")
            except (ValueError, KeyError):
                break
        atomic_text(path, "".join(kept))

    def write(self, name: str, row: dict[str, Any]) -> None:
        """One line, written before the next step begins; by the first rank alone."""
        if not is_rank_0():
            return
        path = self.run_dir / f"{name}.jsonl"
        try:
            with path.open("a") as file:
                file.write(json.dumps({k: _plain(v) for k, v in row.items()}) + "\n")
        except OSError as error:
            message = (
                f"{path}: cannot be written: {error.strerror}. Free some space and run the command again: it resumes."
            )
            raise UserError(message) from error


def _plain(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
