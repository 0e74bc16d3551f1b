"""The problems that an instrument reads."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..results.layout import DataFolder
from ..tasks.golds import check_golds
from ..tasks.sources import prepare

if TYPE_CHECKING:
    from ..study import Study


@contextmanager
def prepared(study: Study, data: Path | None, out: Path) -> Iterator[DataFolder]:
    """Context with the problems in ``data``; with None they are prepared next to ``out`` and removed afterwards."""
    if data is not None:
        yield DataFolder(data)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{out.stem}-data-", dir=out.parent) as folder:
        found = DataFolder(Path(folder))
        prepare(study, found)
        check_golds([found.train, found.validation], study.grader)
        yield found
