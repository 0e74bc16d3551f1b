"""What each key decides: changing its value changes the fingerprints of what it declares, and of nothing else."""

import copy
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic.fields import FieldInfo

from policygrain import digests
from policygrain.objective.method import TEXTS
from policygrain.study import Study, load_study, parse_study
from policygrain.study.fingerprint import Fingerprints, code_digests, start_seed, start_seeds
from policygrain.study.methods import MethodChanges
from policygrain.study.runs import Arm, Run
from policygrain.study.sections import Artefact, decides, leaves

from ..support.small import set_key

LIST = yaml.safe_load(Path(__file__).with_name("keys.yaml").read_text())
SOURCES = {"own.jsonl": "a" * 16, "own_test.jsonl": "b" * 16}
ARTEFACTS = get_args(Artefact)
# Keys as they are in the reference. `base` is merged away before a study is read, and the keys of methods are below.
KEYS = {
    key.replace("experiments.NAME", "experiments.headline").replace("[]", ".0"): info
    for key, info in leaves(Study)
    if key not in ("base", "methods")
}
REPORTED = {"figures", "tracking"}  # made from everything that is measured
RUNS = [Run(arm, seed) for arm, seed in itertools.product(("grpo", "mine"), (3, 5))]
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


def with_values(values: Mapping[str, Any]) -> Study:
    """The reference study with other values of these keys."""
    data = copy.deepcopy(LIST["reference"])
    for key, value in values.items():
        set_key(data, key, value)
    return parse_study(data, Path("study.yaml"))


REFERENCE = with_values({})


def fingerprints(study: Study, sources: Mapping[str, str] = SOURCES) -> dict[Artefact, Any]:
    """Artefact → all its fingerprints, of the seeds and arms of the reference study, whatever ``study`` asks for."""
    found = Fingerprints(study, sources)
    prints: dict[Artefact, Any] = {
        "training_data": found.training_data,
        "benchmarks": found.benchmarks,
        "start_model": [found.start_model(seed) for seed in (3, 5)],
        "run": [found.run(run) for run in RUNS],
        "evaluation": found.evaluation(RUNS, (3, 5)),
        "figures": found.figures(),
        "tracking": found.tracking(),
    }
    assert found.data() == digests.of_json([prints["training_data"], prints["benchmarks"]])
    return prints


def affected(direct: Sequence[Artefact]) -> set[Artefact]:
    """The artefacts in ``direct`` and everything made from them."""
    artefacts = set(direct)
    for artefact, made_from in UPSTREAM.items():
        artefacts |= {artefact} if artefacts & set(made_from) else set()
    return artefacts


def changed(before: dict[Artefact, Any], after: dict[Artefact, Any]) -> set[Artefact]:
    """The artefacts with another fingerprint; of those that there are several of, all or none."""
    for several in ("start_model", "run"):
        assert len({x != y for x, y in zip(before[several], after[several], strict=True)}) == 1, several
    return {artefact for artefact in before if before[artefact] != after[artefact]}


def changed_runs(before: dict[Artefact, Any], after: dict[Artefact, Any]) -> set[str]:
    return {run.name for run, x, y in zip(RUNS, before["run"], after["run"], strict=True) if x != y}


def declared(info: FieldInfo) -> set[Artefact]:
    direct = decides(info)
    assert direct is not None
    return affected(direct)


def test_declarations_form_no_circle():
    assert set(UPSTREAM) == set(ARTEFACTS)
    place = {artefact: i for i, artefact in enumerate(UPSTREAM)}
    assert all(place[source] < place[artefact] for artefact, made_from in UPSTREAM.items() for source in made_from)


@pytest.mark.parametrize("key", KEYS)
def test_a_key_changes_what_it_declares_and_nothing_else(key):
    """A run's own settings change only by keys that decide the run itself, not its initial model or data."""
    value = LIST["other"][key]
    whole = REFERENCE.model_dump(mode="json")
    now = functools.reduce(lambda inside, part: inside[int(part) if part.isdecimal() else part], key.split("."), whole)
    assert now != value, "another value"
    after = with_values({key: value})
    assert changed(fingerprints(REFERENCE), fingerprints(after)) == declared(KEYS[key])
    own, other = (Fingerprints(study).run_settings(Arm("mine"), 5) for study in (REFERENCE, after))
    assert (own != other) == ("run" in (decides(KEYS[key]) or []))


@pytest.mark.parametrize("section", ["model.lora", "evaluation.benchmarks.0.sampling"])
def test_an_optional_section_decides_what_its_keys_decide(section):
    """Null instead of a section, and a section of defaults instead of null."""
    expected: set[Artefact] = set()
    for key, info in KEYS.items():
        expected |= declared(info) if key.startswith(f"{section}.") else set()
    null, defaults = (fingerprints(with_values({section: value})) for value in (None, {}))
    assert changed(fingerprints(REFERENCE), null) == expected == changed(null, defaults)


@pytest.mark.parametrize("key", MethodChanges.model_fields)
def test_a_key_of_a_method_changes_the_arms_that_use_it(key):
    """Label, summary and source are printed with figures and change nothing else."""
    mine = copy.deepcopy(LIST["reference"]["methods"]["mine"])
    if key == "mtp_heads":  # which exist only with such a ratio
        mine["ratio"] = {"name": "block", "size": 2, "future": "mtp_heads"}
    other = {**mine, key: LIST["other_of_method"][key]}
    one, two = (fingerprints(with_values({"methods.mine": method})) for method in (mine, other))
    assert changed_runs(one, two) == (set() if key in TEXTS else {"mine/seed3", "mine/seed5"})
    differ = {artefact for artefact in one if one[artefact] != two[artefact]}
    assert differ == (REPORTED if key in TEXTS else {"run", "evaluation"} | REPORTED)


def test_a_setting_that_an_arm_varies_is_its_own():
    one, two = (Fingerprints(s) for s in (REFERENCE, with_values({"training.updates_per_batch": 4})))
    arm = Run("grpo+updates_per_batch=8", 3)
    assert one.run(arm) == two.run(arm) and one.run(RUNS[0]) != two.run(RUNS[0])
    assert one.figures() != two.figures()


def test_a_changed_preset_changes_methods_that_are_based_on_it():
    one = fingerprints(REFERENCE)
    two = fingerprints(with_values({"methods.grpo": {"aggregation": "token_mean"}}))
    assert changed_runs(one, two) == {run.name for run in RUNS}
    assert fingerprints(with_values({"methods.dapo": {"clip": {"low": 0.1}}})) == one, "no arm uses it"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("own.jsonl", set(ARTEFACTS) - {"benchmarks"}),
        ("own_test.jsonl", {"benchmarks", "evaluation"} | REPORTED),
        ("somewhere_else.jsonl", set()),
    ],
)
def test_another_content_of_a_file_changes_what_is_made_from_it(source, expected):
    assert changed(fingerprints(REFERENCE), fingerprints(REFERENCE, {**SOURCES, source: "c" * 16})) == expected


def test_another_content_of_the_file_of_a_custom_function_changes_the_arms_that_use_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "inside").mkdir()
    (file := tmp_path / "inside" / "parts.py").write_text("def half(batch): return batch.log_ratio")
    study = with_values({"methods.mine.ratio": "inside.parts:half"})
    before, missing = fingerprints(study, SOURCES | code_digests(study)), fingerprints(study)
    file.write_text("def half(batch): return batch.log_ratio / 2")
    after = fingerprints(study, SOURCES | code_digests(study))
    for one, other in itertools.combinations((before, after, missing), 2):
        assert changed_runs(one, other) == {"mine/seed3", "mine/seed5"}
        assert {a for a in one if one[a] != other[a]} == {"run", "evaluation"} | REPORTED
    file.unlink()
    assert code_digests(study) == {} == code_digests(REFERENCE)


def test_a_process_whose_runs_are_not_evaluated_does_not_depend_on_the_protocol():
    for arm, depends in (("mine", True), ("grpo+updates_per_batch=8", False)):
        studies = (with_values({"evaluation.after_training": True, "evaluation.seed": seed}) for seed in (7, 8))
        one, other = (Fingerprints(study, SOURCES).process([Run(arm, 3)]) for study in studies)
        assert (one != other) == depends


def test_runs_from_one_start_model_depend_on_its_seed():
    """With one initial model it is that of the smallest seed; with two, seeds take turns."""
    one, two = (Fingerprints(with_values({"model.starts": 1, "seeds": s}), SOURCES) for s in ([3, 5], [5, 3]))
    assert one.run(RUNS[0]) == two.run(RUNS[0]), "the order of seeds changes nothing"
    assert one.start_model(3) == two.start_model(3)
    more = Fingerprints(with_values({"seeds": [3, 5, 7]}), SOURCES)
    assert more.run(RUNS[0]) == Fingerprints(REFERENCE, SOURCES).run(RUNS[0])
    assert start_seeds(with_values({"model.starts": 1})) == [3] and start_seeds(REFERENCE) == [3, 5]
    turns = with_values({"model.starts": 2, "seeds": [3, 4, 5, 6]})
    assert [start_seed(turns, seed) for seed in (3, 4, 5, 6, 11)] == [3, 4, 3, 4, 3]


def test_bases_the_order_of_keys_and_defaults_that_are_written_out_change_nothing(tmp_path):
    data = copy.deepcopy(LIST["reference"])
    below = {"model": data.pop("model"), "training": data.pop("training")}
    (tmp_path / "below.yaml").write_text(yaml.safe_dump(below))
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"base": "below.yaml", **data}))
    whole = REFERENCE.model_dump(mode="json")
    backwards = parse_study(dict(reversed(whole.items())), Path("study.yaml"))
    for study in (load_study(tmp_path / "study.yaml"), backwards):
        assert fingerprints(study) == fingerprints(REFERENCE)
