"""What figures and tables show, from made-up records: positions, intervals and texts on their axes, numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure

from policygrain.cli import main
from policygrain.errors import NoResults, UserError
from policygrain.figures import catalogue, tables
from policygrain.figures.catalogue import check_figures, draw, figure
from policygrain.figures.labels import labels, name_of
from policygrain.merging import merge
from policygrain.paths import START, StudyFolder
from policygrain.records import write_record
from policygrain.results import StudyResults, model_evaluation
from policygrain.study import Study, load_study, parse_study

from ..support.made_up import make_up

ROOT = Path(__file__).parents[2]
label = labels(load_study(ROOT / "studies/laptop-full.yaml"))


def study_with(**changes: Any) -> Study:
    """The laptop study with six seeds, changed key by key."""
    content = {
        "base": "studies/laptop-full.yaml",
        "name": "reduced",
        "seeds": [0, 1, 2, 3, 4, 5],
    }
    experiments = {"headline": {"methods": ["grpo", "dapo", "tepo"], "vary": {"updates_per_batch": [1, 4]}}}
    training = {"updates_per_batch": 4, "off_policy_steps": 0}
    return parse_study(merge({**content, "experiments": experiments, "training": training}, changes), ROOT / "x.yaml")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    return StudyResults(make_up(study_with(), tmp_path_factory.mktemp("reduced"), {"start": 0, "tepo": 9}))


def points(axes: Axes) -> list[tuple[float, float]]:
    """Single points that are drawn with a marker that is no tick."""
    lines = [line for line in axes.lines if len(line.get_xdata()) == 1 and line.get_marker() not in "|_<>"]
    return [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in lines]


def curves(axes: Axes) -> dict[str, list[float]]:
    """Legend text → means of the lines with error bars."""
    handles, labels = axes.get_legend_handles_labels()
    lines = [(text, handle[0]) for handle, text in zip(handles, labels, strict=True) if isinstance(handle, Container)]
    return {text: [float(y) for y in line.get_ydata()] for text, line in lines}


def labels_of(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.get_yticklabels()]


def test_block_sizes_and_weights_show_final_accuracy(tmp_path: Path) -> None:
    """K = 3 is right on 9 of 12 problems, the others on 6."""
    blocks = {"mpo_phi_0.4": {"base": "mpo", "ratio": {"future_weight": 0.4}}}
    methods = ["mpo_k2", "mpo_k3", "mpo", "mpo_phi_0.4"]
    study = study_with(methods=blocks, experiments={"blocks": {"methods": methods}}, figures=["block_size"])
    results = StudyResults(make_up(study, tmp_path, {"mpo_k3": 9}))
    (axes,) = figure("block_size", results).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["2", "3", "5"]
    assert [float(y) for y in axes.lines[0].get_ydata()] == pytest.approx([50, 75, 50])
    left, right = figure("future_weight", results).axes
    assert len(left.get_xticklabels()) == 2 and right.get_ylabel() == "accuracy (%)"


def test_a_headline_that_is_not_evaluated_has_no_accuracies(tmp_path: Path) -> None:
    experiments = {"headline": {"methods": ["grpo", "tepo"], "evaluate": False}}
    study = study_with(experiments=experiments, figures=["benchmarks"])
    with pytest.raises(UserError, match="'benchmarks' needs an experiment named 'headline' that is evaluated"):
        catalogue.check_figures(study)
    frame, _ = tables.results(StudyResults(make_up(study, tmp_path, {})))
    assert set(frame["arm"]) == {START}


def test_headline_figures_show_the_study_s_own_updates_per_batch(made: StudyResults) -> None:
    assert catalogue.headline(made.study) == ["grpo", "dapo", "tepo"]
    assert [text.get_text() for text in legend_of(figure("clip_ratio", made))] == ["GRPO", "DAPO", "TEPO"]


def legend_of(drawn: Figure) -> list[Any]:
    return list(drawn.legends[0].get_texts())


def test_labels_of_arms_read_well(made: StudyResults) -> None:
    assert (
        label("tepo+updates_per_batch=16") == "TEPO, 16 updates" and label("mpo+updates_per_batch=1") == "MPO, 1 update"
    )
    assert label("dapo+learning_rate=0.0") == "DAPO, learning rate 0"
    assert label("grpo+group=4") == "GRPO, group 4"
    assert name_of(made, "tepo") == "TEPO"
    assert name_of(made, "tepo", among=["tepo", "tepo+updates_per_batch=16"]) == "TEPO, 4 updates"


def test_greedy_accuracy_is_a_table_of_its_own(made: StudyResults, tmp_path: Path) -> None:
    """One problem more of twelve is solved greedily."""
    frame, text = tables.results(made)
    row = frame[(frame["arm"] == "tepo") & (frame["benchmark"] == "average")].iloc[0]
    assert (row["mean"], row["greedy_mean"]) == pytest.approx((75, 100 * 10 / 12))
    lines = [line for line in text.splitlines() if line.startswith("| TEPO, 4 updates |")]
    assert len(lines) == 2 and "75.0" in lines[0] and "83.3" in lines[1]
    assert "Accuracy of sampled responses (temperature 1)" in text and "one greedily decoded response" in text
    study = study_with(seeds=[0, 1], evaluation={"greedy": False})
    without = StudyResults(make_up(study, tmp_path, {}))
    assert "greedily" not in tables.results(without)[1]
    folder = made.folder.evaluation("tepo/seed1")
    found = model_evaluation(folder)
    one = [found.records[0].model_copy(update={"greedy": None}), *found.records[1:]]
    write_record(folder.record, found.model_copy(update={"records": one}))
    assert "greedily" not in tables.results(StudyResults(made.folder.path))[1], "one model lacks them"
    write_record(folder.record, found)


def test_the_ablation_has_the_parts_of_every_arm(tmp_path: Path) -> None:
    variants = {"methods": ["tepo_v1"], "vary": {"updates_per_batch": [1, 4]}}
    study = study_with(seeds=[0, 1], experiments={"ablation": variants})
    frame, text = tables.ablation(StudyResults(make_up(study, tmp_path, {"tepo": 9})))
    rows = frame.set_index("arm")
    assert rows.loc["tepo_v1", "accuracy"] == pytest.approx(50) and rows.loc["tepo", "accuracy"] == pytest.approx(75)
    assert rows.loc["tepo_v1", "ratio"] == "sequence" and "| TEPO v1, 4 updates | sequence |" in text


def test_more_seeds_of_some_arms_do_not_stop_the_table(tmp_path: Path) -> None:
    """The best arm is found on the seeds that both of a pair have."""
    study = study_with(
        seeds=[0, 1, 2],
        experiments={
            "headline": {"methods": ["grpo", "tepo"], "vary": {"updates_per_batch": [4]}},
            "x": {"methods": ["dapo"], "seeds": [0, 1]},
        },
    )
    _, text = tables.results(StudyResults(make_up(study, tmp_path, {"start": 0, "tepo": 12})))
    assert "| TEPO | 3 | **100.0 [" in text and "| DAPO | 2 | " in text, "n where it differs"
    assert "Rows with another n have other seeds" in text


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("benchmarks", {"experiments": {"headline": {"evaluate": False}}}, "'headline' that is evaluated"),
        ("convergence", {"experiments": {"headline": {"methods": ["dapo", "tepo"]}}}, "grpo and another method"),
        ("block_size", {}, "differ in block.size alone"),
        ("future_weight", {}, "differ in block.future_weight alone"),
        ("entropy_regularisation", {}, "at least 2 of these methods"),
    ],
)
def test_what_a_figure_lacks_is_said_before_training_and_by_drawing(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    study = study_with(**changes, figures=[name])
    for call in (lambda: check_figures(study), lambda: figure(name, StudyResults(tmp_path, study))):
        with pytest.raises(UserError) as raised:
            call()
        assert f"figures: {name!r} needs" in str(raised.value) and message in str(raised.value)


# ---- a whole study ---------------------------------------------------------------------------------------------------


@pytest.fixture
def smoke(in_root: Path) -> Study:
    return load_study("tests/support/every_stage.yaml")


@pytest.fixture
def drawable(smoke: Study, tmp_path: Path) -> Path:
    """Records of the smoke study: GRPO right on half of the problems, TEPO on three quarters, the start on none."""
    return make_up(smoke, tmp_path, {"start": 0, "grpo": 6, "tepo": 9})


def test_curves_of_a_study_without_any_optimizer_step_are_empty(drawable: Path, tmp_path: Path) -> None:
    """Every group had equal rewards: no metric of an update was logged."""
    for path in drawable.glob("runs/*/seed*/metrics.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        kept = [{k: v for k, v in row.items() if k not in ("gradient_norm", "entropy_old")} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    draw("dynamics", StudyResults(drawable), tmp_path / "dynamics")
    assert (tmp_path / "dynamics.png").exists()


def test_the_table_holds_the_numbers(drawable: Path) -> None:
    found = StudyResults(drawable)
    draw("results", found)
    text = (drawable / "tables" / "results.md").read_text()
    assert "| GRPO | 50.0 [" in text and "| initial model | 0.0 [0.0, 13.8] |" in text
    # 0 of 24 answers of two seeds: Wilson's upper limit is z² / (24 + z²) = 3.84 / 27.84 = 13.8%.
    assert found.scores("tepo", "count").shape == (2, 12)


def test_missing_records_say_what_would_make_them(smoke: Study, drawable: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run has been trained yet\. Run `snakemake all`"):
        draw("dynamics", StudyResults(tmp_path / "empty", smoke), tmp_path / "x")
    with pytest.raises(UserError, match=r"nothing has been evaluated yet\. Run `snakemake all`"):
        draw("benchmarks", StudyResults(tmp_path / "empty", smoke), tmp_path / "x")
    for seed in (0, 1):
        StudyFolder(drawable).evaluation(f"tepo/seed{seed}").record.unlink()
    for name in ("benchmarks", "results", "ablation"):
        with pytest.raises(NoResults, match="no evaluation of 'tepo'"):
            draw(name, StudyResults(drawable), tmp_path / "x")


def test_a_benchmark_whose_problems_were_all_seen_has_no_clean_accuracy(drawable: Path) -> None:
    for path in drawable.glob("**/evaluation/records.json"):
        content = json.loads(path.read_text())
        for record in content["records"]:
            record["contaminated"] = list(range(record["problems"]))
        path.write_text(json.dumps(content))
    assert "without problems of the training set" not in tables.results(StudyResults(drawable))[1]


def test_an_unknown_figure_is_one_message(in_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", "tests/support/every_stage.yaml", "--results", str(tmp_path), "--out", str(tmp_path / "x")]
    assert main(["figure", "benchmark", *arguments]) == 2
    assert "Did you mean 'benchmarks'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tepo-qwen2.5-7b", "tepo-qwen2.5-math-1.5b", "mpo-r1-distill-1.5b"])
def test_a_paper_s_study_supplies_every_figure_that_it_asks_for(name: str, tmp_path: Path, in_root: Path) -> None:
    """Known before its runs take days, not after."""
    study = load_study(in_root / "studies" / f"{name}.yaml")
    records = StudyResults(make_up(study, tmp_path / name, {"start": 0, "tepo": 9}))
    for asked in study.figures:
        assert figure(asked, records).axes, asked
