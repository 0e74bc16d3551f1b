"""The methods of a study file: changes, and a schema that has the keys of the methods themselves."""

from __future__ import annotations

from policygrain import method
from policygrain.objective import MtpHeads, Sampler
from policygrain.objective.method import CHOICES
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


def test_the_schema_of_a_part_is_that_of_its_class() -> None:
    schema = MethodChanges.model_json_schema()["properties"]["clip"]
    (ppo,) = (s for s in schema["anyOf"] if s.get("title") == "PpoClip")
    assert ppo["description"].startswith("u = min(r Â, clip(r, 1−ε_low, 1+ε_high) Â). PPO (1707.06347 eq. 7)")
    assert ppo["properties"]["low"]["default"] == 0.2 and ppo["properties"]["low"]["maximum"] == 1
    assert schema["anyOf"][0] == {"enum": list(CHOICES["clip"])} and schema["anyOf"][-1] == {"type": "null"}
    assert all(name in schema["description"] for name in CHOICES["clip"])
