"""What each key decides: changing its value changes the fingerprints of what it declares, and of nothing else."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from policygrain import digests
from policygrain.objective.method import TEXTS
from policygrain.study import Study, load_study
from policygrain.study.fingerprint import Fingerprints, code_digests, start_seed, start_seeds
from policygrain.study.methods import MethodChanges
from policygrain.study.runs import Run
from policygrain.study.sections import Artefact, decides, leaves, marker_of, section_of

from ..support.all_keys import OTHER_OF_METHOD, REFERENCE, SOURCES, other_value, reference, value_at, with_values

ARTEFACTS = get_args(Artefact)
KEYS = dict(leaves(Study))
REPORTED = {"figures", "tracking"}  # made from everything that is measured
POLICIES = {"run"} | REPORTED
SEEDS = (3, 5)


def fingerprints(study: Study, sources: Mapping[str, str] = SOURCES) -> dict[Artefact, Any]:
    """Artefact → all its fingerprints, of the seeds and arms of the reference study, whatever ``study`` asks for."""
    found = Fingerprints(study, sources)
    runs = [Run(arm, seed) for arm, seed in itertools.product(("grpo", "mine"), SEEDS)]
    prints: dict[Artefact, Any] = {
        "training_data": found.training_data,
        "benchmarks": found.benchmarks,
        "start_model": [found.start_model(seed) for seed in SEEDS],
        "run": {run.name: found.run(run) for run in runs},
        "evaluation": found.evaluation(runs, SEEDS),
        "figures": found.figures(),
        "tracking": found.tracking(),
    }
    assert found.data() == digests.of_json([prints["training_data"], prints["benchmarks"]])
    return prints


UPSTREAM: Mapping[Artefact, tuple[Artefact, ...]] = {
    "training_data": (),
    "benchmarks": (),
    "start_model": ("training_data",),
    "run": ("training_data", "start_model"),
    # Which benchmark problems are among the training prompts is part of an evaluation.
    "evaluation": ("training_data", "benchmarks", "start_model", "run"),
    "figures": ("run", "evaluation"),
    "tracking": ("figures",),
}


def affected(direct: Sequence[Artefact]) -> set[Artefact]:
    """The artefacts in ``direct`` and everything made from them."""
    artefacts = set(direct)
    while made_from_these := {a for a, made_from in UPSTREAM.items() if artefacts & set(made_from)} - artefacts:
        artefacts |= made_from_these
    return artefacts


def changed(before: dict[Artefact, Any], after: dict[Artefact, Any]) -> set[Artefact]:
    """The artefacts with another fingerprint; of those that there are several of, all or none."""
    for several in ("start_model", "run"):
        one, other = (list(p[several].values()) if several == "run" else p[several] or [] for p in (before, after))
        differ = [x != y for x, y in zip(one, other, strict=False)]
        assert all(differ) or not any(differ), several
    return {artefact for artefact in before if before[artefact] != after[artefact]}


def sections(model: type[BaseModel], prefix: str = "") -> list[tuple[str, FieldInfo]]:
    """Every key of the schema that holds a section and may be null."""
    found = []
    for name, info in model.model_fields.items():
        inside = section_of(info.annotation)
        if inside is None or decides(info) is not None:
            continue
        if type(None) in get_args(info.annotation):
            found.append((f"{prefix}{name}", info))
        found += sections(inside, f"{prefix}{name}{marker_of(info)}.")
    return found


def declared(info: FieldInfo) -> set[Artefact]:
    direct = decides(info)
    assert direct is not None
    return affected(direct)


def test_declarations_form_no_circle() -> None:
    assert set(UPSTREAM) == set(ARTEFACTS)
    place = {artefact: i for i, artefact in enumerate(UPSTREAM)}
    assert all(place[source] < place[artefact] for artefact, made_from in UPSTREAM.items() for source in made_from)
    assert affected(["start_model"]) == {"start_model", "evaluation"} | POLICIES
    assert affected([]) == set()


# `base` is merged away before a study is read, and the keys of methods are below.
PLAIN = [key for key in KEYS if key not in ("base", "methods")]


@pytest.mark.parametrize("key", PLAIN)
def test_a_key_changes_what_it_declares_and_nothing_else(key: str) -> None:
    now = value_at(reference(), key.split("."))
    after = with_values(**{key: other_value(key, KEYS[key], now)})
    assert value_at(after, key.split(".")) != now, "another value"
    assert changed(fingerprints(reference()), fingerprints(after)) == declared(KEYS[key])


@pytest.mark.parametrize("key", [key for key, _ in sections(Study)])
def test_an_optional_section_decides_what_its_keys_decide(key: str) -> None:
    """Null instead of a section, and a section of defaults instead of null."""
    inside = section_of(dict(sections(Study))[key].annotation)
    assert inside is not None
    expected: set[Artefact] = set().union(*(declared(leaf) for _, leaf in leaves(inside)))
    null, defaults = (fingerprints(with_values(**{key: value})) for value in (None, {}))
    assert changed(fingerprints(reference()), null) == expected == changed(null, defaults)


def test_the_optional_sections_are_those_of_the_reference() -> None:
    assert [key for key, _ in sections(Study)] == [
        "model.lora",
        "evaluation.benchmarks[].sampling",
    ]
    assert all(value_at(reference(), key.split(".")) is not None for key, _ in sections(Study))


@pytest.mark.parametrize("key", MethodChanges.model_fields)
def test_a_key_of_a_method_changes_the_arms_that_use_it(key: str) -> None:
    """Label, summary and source are printed with figures and change nothing else."""
    data = copy.deepcopy(REFERENCE)
    data["methods"]["mine"][key] = OTHER_OF_METHOD[key]
    if key == "mtp_heads":  # which exist only with such a ratio, and only in training runs
        heads = {"name": "block", "size": 2, "future": "mtp_heads"}
        data["methods"]["mine"]["ratio"] = heads
    before = copy.deepcopy(data)
    before["methods"]["mine"][key] = REFERENCE["methods"]["mine"].get(key, {} if key == "mtp_heads" else None)
    if before["methods"]["mine"][key] is None:
        del before["methods"]["mine"][key]
    one, two = fingerprints(reference(before)), fingerprints(reference(data))
    runs = {name for name in one["run"] if one["run"][name] != two["run"][name]}
    if key in TEXTS:
        assert not runs
        assert {a for a in one if one[a] != two[a]} == {"figures", "tracking"}
    else:
        assert runs == {"mine/seed3", "mine/seed5"}
        assert {a for a in one if one[a] != two[a]} == {"run", "evaluation"} | REPORTED


def test_a_setting_that_an_arm_varies_is_its_own() -> None:
    one, two = (Fingerprints(s) for s in (reference(), with_values(**{"training.updates_per_batch": 4})))
    arm = Run("grpo+updates_per_batch=8", 3)
    assert one.run(arm) == two.run(arm) and one.run(Run("grpo", 3)) != two.run(Run("grpo", 3))
    assert one.figures() != two.figures()


def test_a_changed_preset_changes_methods_that_are_based_on_it() -> None:
    data = copy.deepcopy(REFERENCE)
    data["methods"]["grpo"] = {"aggregation": "token_mean"}
    one, two = fingerprints(reference()), fingerprints(reference(data))
    assert all(one["run"][name] != two["run"][name] for name in one["run"])
    data["methods"] = {**REFERENCE["methods"], "dapo": {"clip": {"low": 0.1}}}
    assert fingerprints(reference(data)) == one, "no arm uses it"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("own.jsonl", set(ARTEFACTS) - {"benchmarks"}),
        ("own_test.jsonl", {"benchmarks", "evaluation"} | REPORTED),
        ("somewhere_else.jsonl", set()),
    ],
)
def test_another_content_of_a_file_changes_what_is_made_from_it(source: str, expected: set[str]) -> None:
    assert changed(fingerprints(reference()), fingerprints(reference(), {**SOURCES, source: "c" * 16})) == expected


def test_another_content_of_the_file_of_a_custom_function_changes_the_arms_that_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "inside").mkdir()
    (file := tmp_path / "inside" / "parts.py").write_text("def half(batch): return batch.log_ratio")
    data = copy.deepcopy(REFERENCE)
    data["methods"]["mine"]["ratio"] = "inside.parts:half"
    study = reference(data)
    before, missing = fingerprints(study, SOURCES | code_digests(study)), fingerprints(study)
    file.write_text("def half(batch): return batch.log_ratio / 2")
    after = fingerprints(study, SOURCES | code_digests(study))
    for one, other in itertools.combinations((before, after, missing), 2):
        assert {name for name in one["run"] if one["run"][name] != other["run"][name]} == {"mine/seed3", "mine/seed5"}
        assert {a for a in one if one[a] != other[a]} == {"run", "evaluation"} | POLICIES
    file.unlink()
    assert code_digests(study) == {} == code_digests(reference())


def test_a_process_whose_runs_are_not_evaluated_does_not_depend_on_the_protocol() -> None:
    changed = {}
    for arm in ("mine", "grpo+updates_per_batch=8"):
        studies = (with_values(**{"evaluation.after_training": True, "evaluation.seed": seed}) for seed in (7, 8))
        one, other = (Fingerprints(study, SOURCES).process([Run(arm, 3)]) for study in studies)
        changed[arm] = one != other
    assert changed == {"mine": True, "grpo+updates_per_batch=8": False}


def test_runs_from_one_start_model_depend_on_its_seed() -> None:
    """With one initial model it is that of the smallest seed; with two, seeds take turns."""
    shared = {"model.starts": 1}
    one, two = (Fingerprints(with_values(**shared, seeds=seeds), SOURCES) for seeds in ([3, 5], [5, 3]))
    assert one.run(Run("grpo", 3)) == two.run(Run("grpo", 3)), "the order of seeds changes nothing"
    assert one.start_model(3) == two.start_model(3)
    more = Fingerprints(with_values(seeds=[3, 5, 7]), SOURCES)
    assert more.run(Run("grpo", 3)) == Fingerprints(reference(), SOURCES).run(Run("grpo", 3))
    assert start_seeds(with_values(**shared)) == [3] and start_seeds(reference()) == [3, 5]
    two_starts = with_values(**{"model.starts": 2}, seeds=[3, 4, 5, 6])
    assert [start_seed(two_starts, seed) for seed in (3, 4, 5, 6, 11)] == [3, 4, 3, 4, 3]


def test_a_base_is_what_it_adds(tmp_path: Path) -> None:
    data = copy.deepcopy(REFERENCE)
    (tmp_path / "below.yaml").write_text(yaml.safe_dump({"model": data.pop("model"), "training": data.pop("training")}))
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"base": "below.yaml", **data}))
    assert fingerprints(load_study(tmp_path / "study.yaml")) == fingerprints(reference())


def test_the_order_of_keys_and_defaults_that_are_written_out_change_nothing() -> None:
    whole = reference().model_dump(mode="json")
    assert fingerprints(reference(dict(reversed(whole.items())))) == fingerprints(reference())
