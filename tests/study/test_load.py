"""Study files: what is in the repository loads, and what is wrong is named."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import yaml

from policygrain import left
from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.study import load_study, parse_study
from policygrain.study.comparable import different_parts, pairs
from policygrain.study.runs import run_matrix

from ..support.small import SMALL, write_study

ROOT = Path(__file__).parents[2]
BASE = ROOT / "studies" / "miniature.yaml"  # on which others are based; it asks nothing
STUDIES = [Path("config.yaml"), *sorted(p.relative_to(ROOT) for p in (ROOT / "studies").glob("*.yaml") if p != BASE)]


@pytest.mark.parametrize("path", STUDIES, ids=str)
def test_every_study_in_the_repository_loads(path: Path, in_root: Path) -> None:
    """Names included; whether the files of problem sets are there is checked by `check_sources`."""
    assert run_matrix(load_study(path)).runs


def test_the_default_study_is_what_it_says(in_root: Path) -> None:
    """Every arm has the four seeds, and one comparison is planned, of methods that differ in the clip alone."""
    study = load_study("config.yaml")
    matrix = run_matrix(study)
    assert all({r.seed for r in matrix.runs if r.arm == arm} >= {0, 1, 2, 3} for arm in matrix.arms)
    assert 50 <= len(matrix.runs) <= 70 and set(matrix.runs) == set(matrix.evaluated)
    (planned,) = (pair for pair in pairs(study) if not pair.whole)
    assert different_parts(planned.arm.method(study), planned.reference.method(study)) == ["clip"]


def small(**changes: object) -> dict[str, object]:
    return {
        "name": "t",
        "data": {"train": ["count"]},
        "experiments": {"headline": {"methods": ["grpo"]}},
        "evaluation": {"benchmarks": [{"name": "count", "source": "count"}]},
        "figures": ["dynamics"],
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"ahead": 1}}, r"training\.ahead: this key is now called 'off_policy_steps'"),
        (
            {"experiments": {"headline": {"methods": ["grpo"], "vary": {"ahead": [1]}}}},
            r"experiments\.headline: vary\.ahead: this key is now called 'off_policy_steps'",
        ),
        ({"training": {"rollouts": {}}}, r"training\.rollouts: unknown key"),
        ({"trainig": {}}, r"trainig: unknown key\. Did you mean 'training'"),
        ({"training": {"lerning_rate": 1e-3}}, r"training\.lerning_rate: unknown key\. Did you mean 'learning_rate'"),
        ({"model": {"tiny": {"hiden": 3}}}, r"model\.tiny\.hiden: unknown key\. Did you mean 'hidden'"),
        (
            {"experiments": {"headline": {"methods": ["tepoo"]}}},
            r"experiments\.headline: .*'tepoo'.*Did you mean 'tepo'",
        ),
        (
            {"experiments": {"s": {"methods": ["grpo"], "vary": {"stepz": [1]}}}},
            r"experiments\.s: vary\.stepz: .*'steps'",
        ),
        ({"training": {"updates_per_batch": 999}}, r"updates_per_batch: 999 updates of a batch of 128 responses"),
        ({"training": {"steps": 4, "epochs": 2, "warmup_updates": 33}}, r"33 is more than the 32 optimizer steps"),
        ({"methods": {"grpo": {"clip": {"lo": 0.1}}}}, r"methods\.grpo\.clip\.lo: .*no parameter 'lo'.*'low'"),
        ({"methods": {"grpo": {"ratio": "tokn"}}}, r"methods\.grpo\.ratio: no ratio is called 'tokn'.*'token'"),
        ({"methods": {"mine": {"base": "mpo", "heads": {}}}}, r"methods\.mine\.heads: unknown key\..*'mtp_heads'"),
        ({"name": False}, r"name: must be text; YAML reads .* quote it"),
        ({"methods": {"my grpo": {"base": "grpo"}}}, r"methods: as a key, 'my grpo' is not a valid name"),
        (
            {"experiments": {"s": {"methods": ["grpo"], "vary": {"betas": [[0.9, 0.95]]}}}},
            r"experiments\.s\.vary: 'grpo\+betas=\[0\.9, 0\.95\]' contains '\['",
        ),
        ({"figures": ["not_one"]}, r"figures\.0: 'not_one' is not a valid"),
        ({"figures": ["dinamics"]}, r"figures\.0: 'dinamics' is not .* Did you mean 'dynamics'"),
        ({"grader": "maths"}, r"grader: 'maths' is not .* Did you mean 'math'"),
    ],
)
def test_mistakes_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_study(small(**changes), Path("study.yaml"))


def test_a_mistake_on_the_command_line_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("name: t\nseeeds: [0]\n")
    assert main(["check", "--config", str(path)]) == 2
    shown = capsys.readouterr().err
    assert "seeeds: unknown key. Did you mean 'seeds'" in shown and "Traceback" not in shown
    assert main(["check", "--config", str(tmp_path / "none.yaml")]) == 2
    assert "no such study file" in capsys.readouterr().err


def test_a_repeated_key_is_named_with_its_line(tmp_path: Path) -> None:
    """YAML readers keep the last of them."""
    path = tmp_path / "study.yaml"
    path.write_text("name: t\nseeds: [0]\ndata: {train: [count]}\nseeds: [1]\n")
    with pytest.raises(UserError, match=r"(?s)'seeds' occurs more than once.*line 4"):
        load_study(path)


def test_an_overlay_has_a_name_of_its_own(tmp_path: Path) -> None:
    """Otherwise it would be trained into its base's folder."""
    write_study(tmp_path / "base.yaml", small())
    path = write_study(tmp_path / "over.yaml", {"base": "base.yaml", "seeds": [0]})
    with pytest.raises(UserError, match=r"over\.yaml: name: a study with a base needs a name of its own"):
        load_study(path)


@pytest.mark.parametrize("number", ["1e-3", "1E-3", "1e-03"])
def test_a_number_as_yaml_reads_text_is_accepted(number: str, tmp_path: Path) -> None:
    """YAML 1.1 requires a point before the exponent and a sign after it. Text stays text."""
    varied = {"headline": {"methods": ["grpo"], "vary": {"learning_rate": [number, "2e-3"]}}}
    path = write_study(tmp_path / "study.yaml", small(experiments=varied))
    path.write_text(
        path.read_text() + f"title: {number}\ntraining: {{learning_rate: {number}, betas: [{number}, 0.9]}}\n"
    )
    study = load_study(path)
    assert list(run_matrix(study).arms) == ["grpo", "grpo+learning_rate=0.002"]
    assert (study.title, study.training.learning_rate, study.training.betas) == (number, 0.001, (0.001, 0.9))


def test_studies_that_chose_settings_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where `tuned_on` stands in the base, in another folder."""
    (tmp_path / "studies").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(SMALL | {"tuned_on": ["studies/ranges.yaml"]}))
    (tmp_path / "studies" / "mine.yaml").write_text("base: ../base.yaml\nname: mine\n")
    for folder in (tmp_path, tmp_path / "elsewhere"):
        monkeypatch.chdir(folder)
        (path,) = load_study(tmp_path / "studies" / "mine.yaml").tuned_on
        assert Path(path).resolve() == tmp_path / "studies" / "ranges.yaml"


def test_a_study_overrides_its_base(tmp_path: Path) -> None:
    write_study(tmp_path / "base.yaml", small(data={"train": ["count"], "seed": 5}))
    path = write_study(tmp_path / "over.yaml", {"base": "base.yaml", "name": "o", "data": {"train": ["largest"]}})
    study = load_study(path)
    assert (study.name, study.data.train, study.data.seed) == ("o", ["largest"], 5)


def test_what_left_is_an_error_that_says_where_it_went(tmp_path: Path) -> None:
    content = small()
    for place in left.KEYS:
        *sections, key = place.split(".")
        functools.reduce(lambda mapping, name: mapping.setdefault(name, {}), sections, content)[key] = {"where": 8}
    with pytest.raises(UserError) as error:
        load_study(write_study(tmp_path / "study.yaml", content))
    gone = {place for place, where in left.KEYS.items() if f"{place}: this key {where}." in str(error.value)}
    assert "training.ahead" in gone
    varied = small(experiments={"headline": {"methods": ["grpo"], "vary": {"ahead": [1, 2]}}})
    with pytest.raises(UserError, match=r"vary\.ahead: this key is now called 'off_policy_steps'"):
        run_matrix(parse_study(varied, Path("s.yaml")))


def test_figures_belong_to_experiments(tmp_path: Path) -> None:
    """Those of a base show its experiments, so other experiments have the default ones."""
    write_study(tmp_path / "base.yaml", small(figures=["convergence"]))
    own = {"base": "base.yaml", "name": "o"}
    assert load_study(write_study(tmp_path / "a.yaml", own)).figures == ["convergence"]
    own["experiments"] = {"headline": {"methods": ["dapo"]}}
    assert load_study(write_study(tmp_path / "b.yaml", own)).figures == ["benchmarks", "dynamics", "clip_ratio"]


def test_arms_leave_the_study_s_own_settings_out_of_their_names() -> None:
    stress = {"methods": ["grpo"], "vary": {"updates_per_batch": [1, 4, 8]}, "seeds": [0]}
    matrix = run_matrix(parse_study(small(experiments={"stress": stress}), Path("s.yaml")))
    assert list(matrix.arms) == ["grpo+updates_per_batch=1", "grpo", "grpo+updates_per_batch=8"]
