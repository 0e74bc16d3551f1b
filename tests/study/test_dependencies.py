"""What each key decides: changing its value changes the settings of the stages that it declares, and of no other."""

import copy
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from policygrain.objective.method import TEXTS
from policygrain.study import Study, load_study, parse_study, study_text
from policygrain.study.dependencies import VERSIONS, code_digests, run_settings, stage_settings, start_seed, start_seeds
from policygrain.study.runs import Arm
from policygrain.study.schema import decides, leaves

from ..support.small import set_key

LIST = yaml.safe_load(Path(__file__).with_name("keys.yaml").read_text())
SOURCES = {"own.jsonl": "a" * 16, "own_test.jsonl": "b" * 16}
# Keys as they are in the reference. `base` is merged away before a study is read, and the keys of methods are below.
KEYS = {
    key.replace("experiments.", "experiments.headline.").replace("benchmarks.", "benchmarks.0."): info
    for key, info in leaves(Study)
    if key not in ("base", "methods")
}
DRAWN = {"figures", "tables", "report"}
# Artefact → the settings that have the keys which decide it, if they have another name.
FILES = {"training_data": {"data"}, "start_model": {"start"}, "run": {"arms"}, "figures": DRAWN}


def decided(*keys: str) -> set[str]:
    return set().union(*(FILES.get(artefact, {artefact}) for key in keys for artefact in decides(KEYS[key])))


def with_values(values: Mapping[str, Any]) -> Study:
    data = copy.deepcopy(LIST["reference"])
    for key, value in values.items():
        set_key(data, key, value)
    return parse_study(data, Path("study.yaml"))


REFERENCE = with_values({})


def changed(before: Study, after: Study, sources: tuple[Mapping[str, str], ...] = (SOURCES, SOURCES)) -> set[str]:
    """The settings that differ; of arms and figures, `arms` and `figures`, if those of all that both studies have."""
    one, other = (stage_settings(study, of, None) for study, of in zip((before, after), sources, strict=True))
    differ = [name for name in one if name in other and one[name] != other[name]]
    return {name.split("/")[0] for name in differ}


def changed_arms(before: Study, after: Study) -> set[str]:
    one, other = (stage_settings(study, SOURCES, None) for study in (before, after))
    return {name for name in one if name in other and name.startswith("arms/") and one[name] != other[name]}


@pytest.mark.parametrize("key", KEYS)
def test_a_key_changes_what_it_declares_and_nothing_else(key):
    value = LIST["other"][key]
    whole = REFERENCE.model_dump(mode="json")
    now = functools.reduce(lambda inside, part: inside[int(part) if part.isdecimal() else part], key.split("."), whole)
    assert now != value, "another value"
    after = with_values({key: value})
    # A figure has settings of its own; new seeds have new models to evaluate.
    more = {"evaluation"} if key.endswith("seeds") else set()
    assert changed(REFERENCE, after) == (decided(key) | more if key != "figures" else {"report"})
    own, other = (run_settings(study, Arm.of(study, "mine"), 5) for study in (REFERENCE, after))
    assert (own != other) == ("run" in decides(KEYS[key]))


@pytest.mark.parametrize("section", ["model.lora", "evaluation.benchmarks.0.sampling"])
def test_an_optional_section_decides_what_its_keys_decide(section):
    expected = decided(*(key for key in KEYS if key.startswith(f"{section}.")))
    null, defaults = (with_values({section: value}) for value in (None, {}))
    assert changed(REFERENCE, null) == expected == changed(null, defaults)


@pytest.mark.parametrize("key", LIST["other_of_method"])
def test_a_key_of_a_method_changes_the_arms_that_use_it(key):
    """Label, summary and source are printed with figures and change nothing else."""
    mine = copy.deepcopy(LIST["reference"]["methods"]["mine"])
    if key == "mtp_heads":  # which exist only with such a ratio
        mine["ratio"] = {"name": "block", "size": 2, "future": "mtp_heads"}
    other = {**mine, key: LIST["other_of_method"][key]}
    one, two = (with_values({"methods.mine": method}) for method in (mine, other))
    retrained = key not in ("label", "summary", "source")
    assert changed(one, two) == ({"arms"} if retrained else set()) | (DRAWN if key in TEXTS else set())
    assert changed_arms(one, two) == ({"arms/mine"} if retrained else set())


def test_a_setting_that_an_arm_varies_is_its_own():
    after = with_values({"training.updates_per_batch": 4})
    assert changed_arms(REFERENCE, after) == {"arms/grpo", "arms/mine"}, "not grpo+updates_per_batch=8"


def test_a_changed_preset_changes_methods_that_are_based_on_it():
    after = with_values({"methods.grpo": {"aggregation": "token_mean"}})
    assert changed_arms(REFERENCE, after) > {"arms/grpo", "arms/mine"}
    assert changed(REFERENCE, with_values({"methods.dapo": {"clip": {"low": 0.1}}})) == set(), "no arm uses it"


def test_another_content_of_a_file_changes_what_is_made_from_it():
    for source, expected in {"own.jsonl": {"data"}, "own_test.jsonl": {"benchmarks"}, "elsewhere.jsonl": set()}.items():
        assert changed(REFERENCE, REFERENCE, (SOURCES, {**SOURCES, source: "c" * 16})) == expected


def test_another_content_of_the_file_of_a_custom_function_changes_the_arms_that_use_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "inside").mkdir()
    file, study = tmp_path / "inside" / "parts.py", with_values({"methods.mine.ratio": "inside.parts:half"})
    found = []
    for text in ("def half(batch): return batch.log_ratio", "def half(batch): return batch.log_ratio / 2", None):
        file.write_text(text) if text else file.unlink()
        found.append(stage_settings(study, SOURCES, None))
    for name in found[0]:
        assert len({str(settings[name]) for settings in found}) == (3 if name == "arms/mine" else 1)


def test_another_content_of_a_file_of_the_command_changes_its_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "cd . && python a.py --config=b.yaml --recipe '{method}=x.yaml'; python d.py||true # don't stop"
    keys = {"metrics": {"validation_accuracy": "a"}, "logs": {"file": "{out}/log", "format": "csv"}}
    keys = {f"training.{key}": value for key, value in keys.items()}
    study = with_values({**keys, "training.trainer": "command", "training.command": words + "x" * 400})
    found = []
    for name in ("a.py", "b.yaml", "mine=x.yaml", "d.py"):
        (tmp_path / name).write_text("0")
        found.append(code_digests(Arm.of(study, "mine")).keys())
    assert [len(names) for names in found] == [1, 2, 3, 4]


def test_a_new_version_of_a_stage_changes_the_key_of_its_runs(monkeypatch):
    before = run_settings(REFERENCE, Arm.of(REFERENCE, "mine"), 5)
    monkeypatch.setitem(VERSIONS, "train", VERSIONS["train"] + 1)
    assert run_settings(REFERENCE, Arm.of(REFERENCE, "mine"), 5) != before


def test_another_initial_model_changes_runs_and_evaluations_and_what_is_fine_tuned():
    for sft, changed in ((None, {"arms", "evaluation"}), ({"steps": 5}, {"arms", "evaluation", "start"})):
        study = with_values({"model.sft": sft})
        one, two = (stage_settings(study, SOURCES, start) for start in ("a", "b"))
        assert {name.split("/")[0] for name in one if one[name] != two[name]} == changed


def test_seeds_take_turns_with_initial_models():
    """With one initial model it is that of the smallest seed, in whatever order the seeds are."""
    one, two = (with_values({"model.starts": 1, "seeds": seeds}) for seeds in ([3, 5], [5, 3]))
    assert start_seeds(one) == start_seeds(two) == [3] and start_seeds(REFERENCE) == [3, 5]
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
        assert stage_settings(study, SOURCES, None) == stage_settings(REFERENCE, SOURCES, None)
    written = tmp_path / "written.yaml"
    written.write_text(study_text(with_values({"title": "1e-5"}), written))
    assert load_study(written).title == "1e-5", "a text that could be a number"
