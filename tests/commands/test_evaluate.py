"""The arguments of `policygrain evaluate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from policygrain.commands.measuring import named_model
from policygrain.errors import UserError


@pytest.mark.parametrize(
    ("text", "name", "folder"),
    [
        ("start=some/model", "start", "some/model"),
        ("tepo/seed0=runs/tepo/seed0/model", "tepo/seed0", "runs/tepo/seed0/model"),
        ("a,b=1/seed0=runs/a,b=1/seed0/model", "a,b=1/seed0", "runs/a,b=1/seed0/model"),
    ],
)
def test_a_model_is_given_as_name_and_folder(text: str, name: str, folder: str) -> None:
    assert named_model(text) == (name, Path(folder))


@pytest.mark.parametrize("text", ["start", "=folder", "start=", ""])
def test_a_model_without_a_name_or_folder_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not NAME=MODEL_DIR"):
        named_model(text)
