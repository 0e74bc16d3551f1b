"""Settings check their values as pydantic's strict mode does, on which the keys of study files are checked."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from policygrain import method
from policygrain.objective import MtpHeads, Sampler
from policygrain.objective.method import CHOICES
from policygrain.settings import InvalidSettings, Settings, keys, problem_of, setting
from policygrain.study.methods import MethodChanges, section_of_settings

KINDS = [Sampler, MtpHeads, *(part for parts in CHOICES.values() for part in parts.values())]
WORDS = sorted({word for kind in KINDS for _, field in keys(kind).values() for word in [str(field.default)]})
ODD = [math.inf, math.nan, 0.0, 1.0, "1e-3", "3e-4x", "", [], {}, "own", "tiled", "normalised"]
VALUES = st.none() | st.booleans() | st.integers(-3, 9) | st.floats(-2, 6) | st.sampled_from([*ODD, *WORDS])


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(KINDS), st.data())
def test_values_are_accepted_as_by_pydantic(kind, data):
    name = data.draw(st.sampled_from(sorted(keys(kind))))
    value = data.draw(VALUES)
    try:
        expected: Any = section_of_settings(kind).model_validate({name: value}).model_dump()
    except ValidationError:
        expected = None
    try:
        found = kind.of({name: value})
    except InvalidSettings as error:
        # Values that exclude each other are not known to the section.
        assert list(error.problems) == [""] or (expected is None and list(error.problems) == [name]), error
        return
    assert expected == {key: getattr(found, key) for key in keys(kind)}
    assert type(getattr(found, name)) is type(expected[name])


@dataclass(frozen=True, kw_only=True)
class Example(Settings):
    low: float = setting(0.2, "a bound", ge=0, lt=1)
    count: int = setting(3, gt=0)
    cap: float | None = setting(None, le=5)

    def conflict(self) -> str:
        return "low and cap: one of them." if self.low and self.cap else ""


def test_all_wrong_keys_are_named_at_once_and_values_that_exclude_each_other_together():
    with pytest.raises(InvalidSettings) as caught:
        Example.of({"low": -1, "count": 2.5, "cup": 1.0})
    assert caught.value.problems == {
        "low": "must be greater than or equal to 0 (got -1).",
        "count": "must be a valid integer (got 2.5).",
        "cup": "unknown key. Did you mean 'cap'?",
    }
    with pytest.raises(InvalidSettings, match="low and cap: one of them"):
        Example(cap=1.0)
    assert Example(low=0.0, cap=1.0).cap == 1.0


@pytest.mark.parametrize(
    ("value", "kind", "problem"),
    [
        (1, float, ""),
        (True, float, "valid number (got True)"),
        (True, int, "valid integer (got True)"),
        (1, bool, "valid boolean, true or false (got 1)"),
        (None, float | None, ""),
        (math.nan, float | None, "finite number (got nan)"),
        (2, str, "text (got 2)"),
        ([1], Any, ""),
    ],
)
def test_what_is_said_of_a_value(value, kind, problem):
    found = problem_of(value, kind)
    assert problem in found and bool(found) == bool(problem)


# ---- as sections of a study file ------------------------------------------------------------------------------------


def test_changes_of_a_study_are_those_that_it_says():
    """A null is a choice, a missing key is not."""
    said = {"base": "dapo", "clip": None, "sampler": {"dynamic": False}}
    changes = MethodChanges.model_validate(said)
    assert changes.data() == changes.model_dump() == said
    chosen = method("mine", {"mine": changes})
    assert chosen.clip.name == "none" and chosen.ratio == method("dapo").ratio
    assert not chosen.sampler.dynamic and chosen.sampler.overlong_buffer == 0.2


@pytest.mark.parametrize("kind", [Sampler, MtpHeads])
def test_a_section_has_the_keys_defaults_and_descriptions_of_the_settings(kind):
    section = section_of_settings(kind)
    assert section().model_dump() == {name: getattr(kind(), name) for name in keys(kind)}
    described = {name: info.description for name, info in section.model_fields.items()}
    assert described == {name: field.metadata["description"] for name, (_, field) in keys(kind).items()}


def test_the_schema_of_a_part_is_that_of_its_class():
    schema = MethodChanges.model_json_schema()["properties"]["clip"]
    (ppo,) = (s for s in schema["anyOf"] if s.get("title") == "PpoClip")
    assert ppo["properties"]["low"]["default"] == 0.2 and ppo["properties"]["low"]["maximum"] == 1
    assert schema["anyOf"][0] == {"enum": list(CHOICES["clip"])} and schema["anyOf"][-1] == {"type": "null"}
