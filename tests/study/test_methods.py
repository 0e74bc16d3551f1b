"""The methods of a study file: changes, and a schema that has the keys of the methods themselves."""

from __future__ import annotations

import subprocess
import sys

from policygrain import method
from policygrain.objective import MtpHeads, Sampler
from policygrain.settings import keys
from policygrain.study.methods import MethodChanges, section_of_settings


def test_changes_of_a_study_are_those_that_it_says() -> None:
    """A null is a choice, a missing key is not."""
    said = {"base": "dapo", "clip": None, "sampler": {"dynamic": False}}
    changes = MethodChanges.model_validate(said)
    assert changes.data() == changes.model_dump() == said
    chosen = method("mine", {"mine": changes})
    assert chosen.clip.name == "none" and chosen.ratio == method("dapo").ratio
    assert not chosen.sampler.dynamic and chosen.sampler.overlong_buffer == 0.2


def test_a_section_has_the_keys_and_defaults_of_the_settings() -> None:
    for kind in (Sampler, MtpHeads):
        section = section_of_settings(kind)
        given = {name: getattr(kind(), name) for name in keys(kind)}  # records leave out keys that were added later
        assert section().model_dump() == given
        described = {name: info.description for name, info in section.model_fields.items()}
        assert described == {name: field.metadata["description"] for name, (_, field) in keys(kind).items()}


def test_reading_a_study_does_not_import_torch() -> None:
    code = "import sys, policygrain.study.schema; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
