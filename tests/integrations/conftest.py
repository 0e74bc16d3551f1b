"""What tests of other trainers share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def chat_start(made: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A start model with a chat template, which verl needs."""
    folder = tmp_path_factory.mktemp("start") / "model"
    shutil.copytree(made[1], folder, ignore=shutil.ignore_patterns("start.json"))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    return folder
