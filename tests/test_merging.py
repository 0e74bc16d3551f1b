"""One merge for studies and methods."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policygrain.merging import merge


@pytest.mark.parametrize(
    ("below", "above", "merged"),
    [
        ({"x": {"a": 1, "b": 2}}, {"x": {"b": 3}}, {"x": {"a": 1, "b": 3}}),  # key by key
        ({"x": {"name": "f", "a": 1}}, {"x": {"a": 2}}, {"x": {"name": "f", "a": 2}}),
        ({"x": {"name": "f", "a": 1}}, {"x": {"name": "f", "b": 2}}, {"x": {"name": "f", "a": 1, "b": 2}}),
        ({"x": {"name": "f", "a": 1}}, {"x": {"name": "g", "b": 2}}, {"x": {"name": "g", "b": 2}}),  # another function
        ({"x": {"a": 1}}, {"x": {"name": "g", "b": 2}}, {"x": {"name": "g", "b": 2}}),
        ({"x": {"name": "f", "a": 1}}, {"x": "g"}, {"x": "g"}),
        ({"x": "f"}, {"x": {"a": 1}}, {"x": {"name": "f", "a": 1}}),  # parameters for a name alone
        ({"x": "f"}, {"x": {"name": "g", "a": 1}}, {"x": {"name": "g", "a": 1}}),
        ({"x": [1, 2]}, {"x": [3]}, {"x": [3]}),  # lists replace
        ({"x": {"a": 1}}, {"x": None}, {"x": None}),
        ({"x": None}, {"x": {"a": 1}}, {"x": {"a": 1}}),
        ({"x": 1}, {"y": 2}, {"x": 1, "y": 2}),
        ({"name": "f", "x": 1}, {"name": "g"}, {"name": "g", "x": 1}),  # the two themselves are always merged
    ],
)
def test_merging(below, above, merged):
    before = json.dumps([below, above])
    assert merge(below, above) == merged
    assert json.dumps([below, above]) == before


def test_keys_that_are_replaced_as_a_whole():
    below, above = {"x": {"a": 1}, "y": {"a": 1}}, {"x": {"b": 2}, "y": {"b": 2}}
    assert merge(below, above, replace=("x",)) == {"x": {"b": 2}, "y": {"a": 1, "b": 2}}


values = st.recursive(
    st.none() | st.integers() | st.sampled_from("fg"),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "name"]), inner, max_size=3),
    max_leaves=8,
)
mappings = st.dictionaries(st.sampled_from(["a", "b", "name"]), values, max_size=3)


@given(mappings, mappings)
def test_what_is_above_is_there_and_merging_it_again_changes_nothing(below, above):
    merged = merge(below, above)
    assert merge(merged, above) == merged
    assert merge(below, {}) == below
    assert {key: value for key, value in above.items() if not isinstance(value, dict)}.items() <= merged.items()
