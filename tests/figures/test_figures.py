"""Figures and tables: one look for each method, nothing cut off, and numbers from made-up records."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Text

from policygrain.errors import NoResults, UserError
from policygrain.figures import SUFFIXES
from policygrain.figures.catalogue import FIGURES, draw
from policygrain.figures.shown import check_figures, headline, labels, shown_by
from policygrain.figures.style import COLUMN, PAGE, looks, save
from policygrain.files import read_json
from policygrain.merging import merge
from policygrain.objective import method_names
from policygrain.paths import START
from policygrain.results import StudyResults
from policygrain.study import Study, load_study, parse_study

from ..support.files import write_lines
from ..support.made_up import make_up, table
from ..support.small import small_study
from . import CASES

ROOT = Path(__file__).parents[2]
SIX = ["grpo", "dapo", "tepo", "mpo", "gspo", "long_name"]


def laptop_with(changes: dict[str, Any]) -> Study:
    content = {"base": "lab/research/studies/laptop-full.yaml", "name": "six", "seeds": [0, 1]}
    return parse_study(content | changes, ROOT / "six.yaml")


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    study = load_study(Path(__file__).with_name("six.yaml")).model_copy(update={"figures": [*FIGURES]})
    return StudyResults(make_up(study, tmp_path_factory.mktemp("six"), {"start": 0, "tepo": 9}))


def figure(name: str, results: StudyResults) -> Figure:
    return FIGURES[name](results, shown_by(name, results.study))


def cut_off(figure: Figure) -> list[str]:
    """What is drawn beyond the edges of the figure, by more than a hundredth of an inch."""
    figure.draw_without_rendering()
    drawn, edges = figure.get_tightbbox(), figure.bbox_inches
    over = {"left": -drawn.x0, "bottom": -drawn.y0, "right": drawn.x1 - edges.x1, "top": drawn.y1 - edges.y1}
    return [f"{side}: {inches:.2f} in" for side, inches in over.items() if inches > 0.01]


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_as_wide_as_a_column_or_a_page_and_drawn_twice_the_same(name, six, tmp_path):
    """Nothing is cut off or empty; texts have at least 7 points, and their fonts are in the PDF."""
    for attempt in "ab":
        drawn = figure(name, StudyResults(six.folder.path))
        assert cut_off(drawn) == [] and all(axes.has_data() for axes in drawn.axes)
        assert drawn.get_figwidth() in (COLUMN, PAGE)
        assert min(text.get_fontsize() for text in drawn.findobj(Text) if text.get_text()) >= 7
        save(drawn, tmp_path / attempt)
    for suffix in SUFFIXES:
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    pdf = (tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf


def test_a_method_has_one_colour_and_marker_in_all_figures(six):
    label, chosen = labels(six.study), looks(six.study)
    for name in ("dynamics", "clip_ratio", "pass_at_k"):
        lines = {str(line.get_label()): line for axes in figure(name, six).axes for line in axes.lines}
        for arm in SIX:
            line = next(line for text, line in lines.items() if text.split(" (")[0] == label(arm))
            assert (line.get_color(), line.get_marker()) == (chosen[arm]["color"], chosen[arm]["marker"])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(sorted(set(method_names()) - {"mpo_heads"})), min_size=1, max_size=20, unique=True))
def test_methods_of_a_study_look_different(names):
    """Those that are compared most look the same in every study; up to seven have colours of their own."""
    found = looks(laptop_with({"figures": [], "experiments": {"headline": {"methods": names}}}))
    pairs = [(one["color"], one["marker"], one.get("markerfacecolor")) for one in found.values()]
    assert len(set(pairs)) == len(pairs) == len(names) + 1 and START in found
    known = {"grpo": ("#0072B2", "o"), "dapo": ("#56B4E9", "s"), "tepo": ("#D55E00", "D"), "mpo": ("#009E73", "^")}
    assert all((found[n]["color"], found[n]["marker"]) == one for n, one in known.items() if n in found)
    if len(names) <= 7:
        assert len({found[n]["color"] for n in names}) == len(names)


@pytest.mark.parametrize(
    ("key", "values", "same"), [("updates_per_batch", [1, 4], True), ("learning_rate", [1e-4, 5e-4], False)]
)
def test_an_arm_looks_like_its_method_unless_that_is_missing(key, values, same):
    found = looks(laptop_with({"experiments": {"headline": {"methods": ["tepo"], "vary": {key: values}}}}))
    others = [look for arm, look in found.items() if arm.startswith("tepo+")]
    assert ("tepo" in found and found["tepo"] in others) == same
    assert same or others[0] != others[1]


def test_labels_are_those_of_methods_with_settings():
    label = labels(laptop_with({"methods": {name: changes for name, (changes, _) in CASES["labels"].items()}}))
    of_arms = {name: text for name, (_, text) in CASES["labels"].items()} | CASES["labels_of_arms"]
    assert {arm: label(arm) for arm in of_arms} == of_arms


def line_of_grpo(results: StudyResults, name: str, number: int, metric: str, *values: float) -> Any:
    """A panel of a figure and GRPO's line in it, with a metric of its steps changed, by seed; more are copies."""
    found = StudyResults(results.folder.path)
    first = found.steps[found.steps["seed"] == 0]
    found.steps = pd.concat([found.steps, *(first.assign(seed=seed) for seed in range(2, len(values)))])
    mine = found.steps["arm"] == "grpo"
    for seed, value in enumerate(values):
        found.steps.loc[mine & (found.steps["seed"] == seed) & found.steps[metric].notna(), metric] = value
    axes = figure(name, found).axes[number]
    (line,) = (line for line in axes.lines if line.get_label() == "GRPO")
    return axes, [float(y) for y in line.get_ydata()]


def test_means_of_gradients_are_geometric_and_shares_stay_within_0_and_100(six):
    """Norms 1 and 10⁶ have the mean 10³; of accuracies 0, 100 and 0% Student's interval is ±143 points."""
    axes, line = line_of_grpo(six, "dynamics", 1, "gradient_norm", 1.0, 1e6)
    assert line == pytest.approx([1e3] * len(line)) and axes.get_yscale() == "log"
    axes, _ = line_of_grpo(six, "dynamics", 0, "validation_accuracy", 0.0, 1.0, 0.0)
    ends = np.concatenate([path.vertices[:, 1] for band in axes.collections for path in band.get_paths()])
    assert ends.min() == 0 and ends.max() == 100
    axes, line = line_of_grpo(six, "clip_ratio", 0, "clip_fraction_low", 0.0, 0.0)
    assert set(line) == {0.0} and axes.get_ylim()[0] == 0 and axes.get_yticklabels()[0].get_text() == "0"


def study_with(**changes: Any) -> Study:
    """The small study with two seeds and three methods at two numbers of updates, changed key by key."""
    headline = {"methods": ["grpo", "dapo", "tepo"], "vary": {"updates_per_batch": [1, 4]}}
    content: dict[str, Any] = {"seeds": [0, 1], "training": {"updates_per_batch": 4}, "evaluation": {"greedy": True}}
    return small_study(**merge(content | {"experiments": {"headline": headline}}, changes))


def made(folder: Path, right: dict[str, int], **changes: Any) -> StudyResults:
    return StudyResults(make_up(study_with(**changes), folder, right))


def texts(found: list[Any]) -> list[str]:
    return [text.get_text() for text in found]


def change(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))


def test_a_sweep_shows_final_accuracy_by_value(tmp_path):
    """K = 3 is right on 9 of 12 problems, the others on 6."""
    methods = {"blocks": {"methods": ["mpo", "mpo_k3", "mpo_k2"]}}
    sizes = {"mpo": 5, "mpo_k3": 3, "mpo_k2": 2}
    results = made(tmp_path, {"mpo_k3": 9}, experiments=methods, sweeps={"size K": sizes})
    (axes,) = figure("sweep", results).axes
    assert texts(axes.get_xticklabels()) == ["2", "3", "5"] and axes.get_xlabel() == "size K"
    assert [float(y) for y in axes.lines[0].get_ydata()] == pytest.approx([50, 75, 50])


def test_the_average_leaves_out_a_benchmark_that_says_so(tmp_path):
    """The one left out is wrong on all problems; nor do the seeds' marks in a sweep count it."""
    names = ("count", "largest")
    benchmarks = [{"name": name, "source": name, "size": 12, "average": name == "count"} for name in names]
    results = made(tmp_path, {}, evaluation={"benchmarks": benchmarks}, sweeps={"size": {"tepo": 1, "grpo": 2}})
    for record in tmp_path.glob("runs/tepo/*/evaluation/records.json"):
        content = json.loads(record.read_text())
        content["records"][1] |= {"per_problem": [0.0] * 12, "accuracy": 0.0}
        change(record, content)
    marks = [line.get_ydata() for line in figure("sweep", results).axes[0].lines if line.get_markersize() == 5]
    assert [np.mean(of) for of in marks] == pytest.approx([50, 50])
    frame, _ = table("results", results)
    means = frame[frame["arm"] == "tepo"].set_index("benchmark")["mean"]
    assert dict(means) == pytest.approx({"count": 50, "largest": 0, "average": 50})


def test_headline_figures_show_the_study_s_own_updates(tmp_path):
    results = made(tmp_path, {})
    assert headline(results.study) == ["grpo", "dapo", "tepo"]
    assert texts(figure("clip_ratio", results).legends[0].get_texts()) == ["GRPO", "DAPO", "TEPO"]


def test_the_table_has_sampled_and_greedy_accuracy(tmp_path):
    """One problem more of twelve is solved greedily. Of none of 24 Wilson's limit is 13.8%."""
    results = made(tmp_path, {"start": 0, "tepo": 9})
    frame, text = table("results", results)
    row = frame[(frame["arm"] == "tepo") & (frame["benchmark"] == "average")].iloc[0]
    assert (row["mean"], row["greedy_mean"]) == pytest.approx((75, 100 * 10 / 12))
    lines = [line for line in text.splitlines() if line.startswith("| TEPO |")]
    assert len(lines) == 2 and "75.0" in lines[0] and "83.3" in lines[1]
    assert "| initial model | 2 | 0.0 [0.0, 13.8] |" in text
    assert "Accuracy of sampled responses (temperature 1)" in text and "one greedily decoded response" in text
    record = results.folder.evaluation("tepo/seed1").record
    change(record, merge(content := read_json(record), {"records": [content["records"][0] | {"greedy": None}]}))
    assert "greedily" not in table("results", StudyResults(tmp_path))[1], "one model lacks them"


def test_the_ablation_has_the_parts_of_every_arm(tmp_path):
    variants = {"ablation": {"methods": ["tepo_v1"], "vary": {"updates_per_batch": [1, 4]}}}
    frame, text = table("ablation", made(tmp_path, {"tepo": 9}, experiments=variants))
    rows = frame.set_index("arm")
    assert rows.loc["tepo_v1", "accuracy"] == pytest.approx(50) and rows.loc["tepo", "accuracy"] == pytest.approx(75)
    assert rows.loc["tepo_v1", "ratio"] == "sequence" and "| TEPO v1 | sequence |" in text


def test_more_seeds_of_some_arms_do_not_stop_the_table(tmp_path):
    """The best arm is found on the seeds that both of a pair have."""
    headline = {"methods": ["grpo", "tepo"], "vary": {"updates_per_batch": [4]}, "seeds": [0, 1, 2]}
    experiments = {"headline": headline, "x": {"methods": ["dapo"], "seeds": [0, 1]}}
    _, text = table("results", made(tmp_path, {"start": 0, "tepo": 12}, experiments=experiments, seeds=[0, 1, 2]))
    assert "| TEPO | 3 | **100.0 [" in text and "| DAPO | 2 | " in text
    assert r"TEPO & 3 & \textbf{100.0 [" in " ".join((tmp_path / "tables/results.tex").read_text().split())
    assert "Rows with another n have other seeds" in text


@pytest.mark.parametrize(("name", "headline", "sweeps", "message"), CASES["lacking"])
def test_what_a_figure_lacks_is_said_before_training_and_by_drawing(name, headline, sweeps, message, tmp_path):
    study = study_with(experiments={"headline": headline}, figures=[name], sweeps=sweeps)
    for call in (lambda: check_figures(study), lambda: draw(name, StudyResults(tmp_path, study))):
        with pytest.raises(UserError, match=message):
            call()


def test_curves_of_a_study_without_any_optimizer_step_are_empty(tmp_path):
    """Every group had equal rewards: no metric of an update was logged."""
    results = made(tmp_path, {})
    for path in tmp_path.glob("runs/*/seed*/metrics.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        write_lines(path, [{k: v for k, v in row.items() if k not in ("gradient_norm", "entropy_old")} for row in rows])
    draw("dynamics", results, tmp_path / "dynamics")
    assert (tmp_path / "dynamics.png").exists()


def test_missing_records_say_what_would_make_them(tmp_path):
    empty = StudyResults(tmp_path / "empty", study_with())
    for name, says in (("dynamics", "no run has been trained yet"), ("benchmarks", "nothing has been evaluated yet")):
        with pytest.raises(UserError, match=rf"{says}\. Run `snakemake all`"):
            draw(name, empty, tmp_path / "x")
    results = made(tmp_path / "some", {})
    with pytest.raises(UserError, match=r"no figure or table .benchmark.\. Did you mean .benchmarks."):
        draw("benchmark", results)
    for seed in (0, 1):
        results.folder.evaluation(f"tepo/seed{seed}").record.unlink()
    for name in ("benchmarks", "results", "ablation"):
        with pytest.raises(NoResults, match="no evaluation of 'tepo'"):
            draw(name, StudyResults(tmp_path / "some"), tmp_path / "x")


def test_no_table_has_clean_accuracy_where_all_problems_were_seen(tmp_path):
    made(tmp_path, {})
    for path in tmp_path.glob("**/evaluation/records.json"):
        content = read_json(path)
        records = [record | {"contaminated": list(range(record["problems"]))} for record in content["records"]]
        change(path, content | {"records": records})
    assert "without problems of the training set" not in table("results", StudyResults(tmp_path))[1]


@pytest.mark.parametrize("name", ["tepo-qwen2.5-7b", "tepo-qwen2.5-math-1.5b", "mpo-r1-distill-1.5b"])
def test_a_paper_s_study_supplies_every_figure_that_it_asks_for(name, tmp_path, in_root):
    """Known before its runs take days, not after."""
    study = load_study(in_root / "studies" / f"{name}.yaml")
    records = StudyResults(make_up(study, tmp_path / name, {"start": 0, "tepo": 9}))
    for asked in study.figures:
        assert figure(asked, records).axes, asked
