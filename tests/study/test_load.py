"""Study files: bases and overlays, what YAML makes of texts, comparable methods, and the studies of papers."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from policygrain.commands.check import check_tuning
from policygrain.data.sets import SETS, sampling_of
from policygrain.errors import UserError
from policygrain.merging import merge
from policygrain.study import load_study, parse_study
from policygrain.study.runs import check_comparisons, different_parts, pairs, run_matrix

from ..support.small import SMALL, small_study, write_study

ROOT = Path(__file__).parents[2]
BASE = ROOT / "studies" / "miniature.yaml"  # on which others are based; it asks nothing
STUDIES = [Path("config.yaml"), *sorted(p.relative_to(ROOT) for p in (ROOT / "studies").glob("*.yaml") if p != BASE)]
OVER = {"base": "base.yaml", "name": "o"}


@pytest.mark.parametrize("path", STUDIES, ids=str)
def test_every_study_in_the_repository_loads(path, in_root):
    assert run_matrix(load_study(path)).runs


def test_the_default_study_is_what_it_says(in_root):
    study = load_study("config.yaml")
    matrix = run_matrix(study)
    assert all({r.seed for r in matrix.runs if r.arm == arm} >= {0, 1} for arm in matrix.arms)
    assert 30 <= len(matrix.runs) <= 70 and set(matrix.runs) == set(matrix.evaluated)
    (planned,) = (pair for pair in pairs(study) if not pair.whole)
    assert different_parts(planned.arm.method, planned.reference.method) == ["clip"]


def test_a_repeated_key_is_named_with_its_line(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("name: t\nseeds: [0]\ndata: {train: [count]}\nseeds: [1]\n")
    with pytest.raises(UserError, match=r"(?s)'seeds' occurs more than once.*line 4"):
        load_study(path)


@pytest.mark.parametrize("number", ["1e-3", "1E-3", "1e-03"])
def test_a_number_as_yaml_reads_text_is_accepted(number, tmp_path):
    """YAML 1.1 requires a point before the exponent and a sign after it."""
    varied = {"headline": {"methods": ["grpo"], "vary": {"learning_rate": [number, 0.002]}}}
    training = SMALL["training"] | {"learning_rate": number, "betas": [number, 0.9]}
    path = write_study(tmp_path / "study.yaml", SMALL | {"experiments": varied, "training": training})
    path.write_text(path.read_text().replace(f"'{number}'", number))
    study = load_study(path)
    assert list(run_matrix(study).arms) == ["grpo", "grpo+learning_rate=0.002"]
    assert (study.training.learning_rate, study.training.betas) == (0.001, (0.001, 0.9))


def test_studies_that_chose_settings_are_found_from_any_folder(tmp_path, monkeypatch):
    """Also where `tuned_on` stands in the base, in another folder."""
    (tmp_path / "studies").mkdir()
    (tmp_path / "elsewhere").mkdir()
    write_study(tmp_path / "base.yaml", SMALL | {"tuned_on": ["studies/ranges.yaml"]})
    mine = write_study(tmp_path / "studies" / "mine.yaml", {"base": "../base.yaml", "name": "mine"})
    for folder in (tmp_path, tmp_path / "elsewhere"):
        monkeypatch.chdir(folder)
        (path,) = load_study(mine).tuned_on
        assert Path(path).resolve() == tmp_path / "studies" / "ranges.yaml"


def over(tmp_path: Path, below: dict[str, Any], above: dict[str, Any]) -> Any:
    """The study ``above``, based on the small one with the changes ``below``."""
    write_study(tmp_path / "base.yaml", SMALL | below)
    return load_study(write_study(tmp_path / "over.yaml", above))


def test_a_study_overrides_its_base_and_has_a_name_of_its_own(tmp_path):
    study = over(tmp_path, {"data": {"train": ["count"], "seed": 5}}, OVER | {"data": {"train": ["largest"]}})
    assert (study.name, study.data.train, study.data.seed) == ("o", ["largest"], 5)
    with pytest.raises(UserError, match=r"over\.yaml: name: a study with a base needs a name of its own"):
        over(tmp_path, {}, {"base": "base.yaml", "seeds": [0]})  # it would be trained into its base's folder


def test_figures_belong_to_experiments(tmp_path):
    """Those of a base show its experiments, so other experiments have the default ones."""
    figures = {"figures": ["convergence"]}
    assert over(tmp_path, figures, OVER).figures == ["convergence"]
    other = OVER | {"experiments": {"headline": {"methods": ["dapo"]}}}
    assert over(tmp_path, figures, other).figures == ["benchmarks", "dynamics", "clip_ratio"]


def test_arms_leave_the_study_s_own_settings_out_of_their_names():
    stress = {"methods": ["grpo"], "vary": {"updates_per_batch": [1, 2, 8]}, "seeds": [0]}
    matrix = run_matrix(parse_study(SMALL | {"experiments": {"stress": stress}}, Path("s.yaml")))
    assert list(matrix.arms) == ["grpo+updates_per_batch=1", "grpo", "grpo+updates_per_batch=8"]


LIST = yaml.safe_load(Path(__file__).with_name("comparable.yaml").read_text())


def experiment(section):
    return small_study(methods=LIST["methods"], experiments={"map": section}, seeds=[0, 1])


@pytest.mark.parametrize(("one", "other", "parts"), LIST["different_parts"])
def test_parts_that_differ(one, other, parts):
    study = experiment({"methods": ["token"]})
    assert different_parts(study.method(one), study.method(other)) == parts


@pytest.mark.parametrize(("section", "expected"), LIST["pairs"])
def test_arms_are_compared_at_their_own_settings(section, expected):
    study = experiment(section)
    check_comparisons(study)
    assert [f"{pair.arm.name} {pair.reference.name}" for pair in pairs(study)] == expected
    assert {pair.margin for pair in pairs(study)} == {section.get("margin")}


@pytest.mark.parametrize(("experiments", "expected"), LIST["wholes"])
def test_an_own_method_is_compared_with_the_nearest_base_that_is_trained(experiments, expected):
    found = pairs(small_study(methods=LIST["own"], experiments=experiments))
    assert [f"{pair.arm.name} {pair.reference.name}" for pair in found if pair.whole] == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize(("section", "says"), LIST["refused"])
def test_a_comparison_that_breaks_a_rule_is_refused(section, says):
    with pytest.raises(UserError, match=says):
        check_comparisons(experiment(section))
    check_comparisons(experiment({**section, "reference": None}))


@pytest.mark.parametrize(("changes", "says"), LIST["chosen_by"])
def test_settings_are_chosen_on_problems_seeds_and_start_models_that_judge_nothing(changes, says, tmp_path):
    path = write_study(tmp_path / "ranges.yaml", merge(SMALL, {"name": "ranges", "seeds": [5, 6], **changes}))
    study = small_study(seeds=[0, 1], tuned_on=[str(path)], data={"train": ["count", "own.jsonl"]})
    if says is None:
        check_tuning(study)
    else:
        with pytest.raises(UserError, match=rf"{says}.*rule 4 of docs/statistics\.md"):
            check_tuning(study)
    path.unlink()
    with pytest.raises(UserError, match=r"tuned_on: .*ranges\.yaml: no such study file"):
        check_tuning(study)


@pytest.mark.parametrize("name", ["tepo-qwen2.5-7b", "tepo-qwen2.5-math-1.5b", "mpo-r1-distill-1.5b"])
def test_the_benchmarks_of_a_paper_study_have_their_registered_sampling(in_root, name):
    study = load_study(f"studies/{name}.yaml")
    assert [SETS[source].n for source in study.data.train] == [None]
    evaluation = study.evaluation.model_copy(update={"registered_sampling": False})
    without = study.model_copy(update={"evaluation": evaluation})
    for benchmark in study.evaluation.benchmarks:
        sampling = sampling_of(study, benchmark)
        assert SETS[benchmark.source].n and sampling_of(without, benchmark).n == 1
        assert (sampling.n, sampling.temperature) == ((32, 0.6) if re.match("aime|amc", benchmark.name) else (1, 0.0))
        assert sampling.max_tokens == study.training.max_tokens
