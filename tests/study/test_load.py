"""Study files: those of the repository, bases and overlays, and what YAML makes of texts and numbers."""

import re
from pathlib import Path
from typing import Any

import pytest

from policygrain import left
from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.merging import merge
from policygrain.study import load_study, parse_study
from policygrain.study.comparable import different_parts, pairs
from policygrain.study.runs import run_matrix

from ..support.small import SMALL, write_study

ROOT = Path(__file__).parents[2]
BASE = ROOT / "studies" / "miniature.yaml"  # on which others are based; it asks nothing
STUDIES = [Path("config.yaml"), *sorted(p.relative_to(ROOT) for p in (ROOT / "studies").glob("*.yaml") if p != BASE)]
OVER = {"base": "base.yaml", "name": "o"}


@pytest.mark.parametrize("path", STUDIES, ids=str)
def test_every_study_in_the_repository_loads(path, in_root):
    """Names included; whether the files of problem sets are there is checked by `check_sources`."""
    assert run_matrix(load_study(path)).runs


def test_the_default_study_is_what_it_says(in_root):
    """Every arm has the four seeds, and one comparison is planned, of methods that differ in the clip alone."""
    study = load_study("config.yaml")
    matrix = run_matrix(study)
    assert all({r.seed for r in matrix.runs if r.arm == arm} >= {0, 1, 2, 3} for arm in matrix.arms)
    assert 50 <= len(matrix.runs) <= 70 and set(matrix.runs) == set(matrix.evaluated)
    (planned,) = (pair for pair in pairs(study) if not pair.whole)
    assert different_parts(planned.arm.method(study), planned.reference.method(study)) == ["clip"]


def test_a_mistake_on_the_command_line_is_one_message(tmp_path, capsys):
    path = tmp_path / "study.yaml"
    path.write_text("name: t\nseeeds: [0]\n")
    for file, says in ((path, "seeeds: unknown key. Did you mean 'seeds'"), (tmp_path / "no", "no such study file")):
        assert main(["check", "--config", str(file)]) == 2
        shown = capsys.readouterr().err
        assert says in shown and "Traceback" not in shown


def test_a_repeated_key_is_named_with_its_line(tmp_path):
    """YAML readers keep the last of them."""
    path = tmp_path / "study.yaml"
    path.write_text("name: t\nseeds: [0]\ndata: {train: [count]}\nseeds: [1]\n")
    with pytest.raises(UserError, match=r"(?s)'seeds' occurs more than once.*line 4"):
        load_study(path)


@pytest.mark.parametrize("number", ["1e-3", "1E-3", "1e-03"])
def test_a_number_as_yaml_reads_text_is_accepted(number, tmp_path):
    """YAML 1.1 requires a point before the exponent and a sign after it. Text stays text."""
    varied = {"headline": {"methods": ["grpo"], "vary": {"learning_rate": [number, "2e-3"]}}}
    training = SMALL["training"] | {"learning_rate": number, "betas": [number, 0.9]}
    path = write_study(tmp_path / "study.yaml", SMALL | {"experiments": varied, "training": training, "title": number})
    path.write_text(path.read_text().replace(f"'{number}'", number))
    study = load_study(path)
    assert list(run_matrix(study).arms) == ["grpo", "grpo+learning_rate=0.002"]
    assert (study.title, study.training.learning_rate, study.training.betas) == (number, 0.001, (0.001, 0.9))


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


@pytest.mark.parametrize("place", left.KEYS)
def test_what_left_is_an_error_that_says_where_it_went(place, tmp_path):
    *sections, key = place.replace("*", "grpo").split(".")
    changes: Any = {key: {"where": 8}}
    for section in reversed(sections):
        changes = {section: changes}
    with pytest.raises(UserError, match=re.escape(f"{key}: this key {left.KEYS[place]}.")):
        load_study(write_study(tmp_path / "study.yaml", merge(SMALL, changes)))


def test_a_varied_key_that_left_is_named():
    varied = {"experiments": {"headline": {"methods": ["grpo"], "vary": {"ahead": [1, 2]}}}}
    with pytest.raises(UserError, match=r"vary\.ahead: this key is now called 'off_policy_steps'"):
        run_matrix(parse_study(SMALL | varied, Path("s.yaml")))


def test_arms_leave_the_study_s_own_settings_out_of_their_names():
    stress = {"methods": ["grpo"], "vary": {"updates_per_batch": [1, 2, 8]}, "seeds": [0]}
    matrix = run_matrix(parse_study(SMALL | {"experiments": {"stress": stress}}, Path("s.yaml")))
    assert list(matrix.arms) == ["grpo+updates_per_batch=1", "grpo", "grpo+updates_per_batch=8"]
