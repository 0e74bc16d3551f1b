"""The look of methods in all figures: one colour and marker each, and nothing outside of the figure."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from policygrain.figures import SUFFIXES
from policygrain.figures.catalogue import FIGURES, figure
from policygrain.figures.labels import labels
from policygrain.figures.style import looks, save
from policygrain.objective import method_names
from policygrain.paths import START
from policygrain.results import StudyResults
from policygrain.study import Study, load_study, parse_study

from ..support.made_up import make_up

ROOT = Path(__file__).parents[2]
SIX = ["grpo", "dapo", "tepo", "mpo", "gspo", "long_name"]


def study_with(changes: dict[str, Any]) -> Study:
    content = {"base": "studies/laptop-full.yaml", "name": "six", "seeds": [0, 1]}
    return parse_study(content | changes, ROOT / "six.yaml")


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    study = load_study(Path(__file__).with_name("six.yaml")).model_copy(update={"figures": [*FIGURES]})
    return StudyResults(make_up(study, tmp_path_factory.mktemp("six"), {"start": 0, "tepo": 9}))


def cut_off(figure: Figure) -> list[str]:
    """What is drawn beyond the edges of the figure, by more than a hundredth of an inch."""
    figure.draw_without_rendering()
    drawn, edges = figure.get_tightbbox(), figure.bbox_inches
    over = {"left": -drawn.x0, "bottom": -drawn.y0, "right": drawn.x1 - edges.x1, "top": drawn.y1 - edges.y1}
    free = [text for text in figure.findobj(Text) if not text.get_in_layout() and text.get_text()]
    wide = [text.get_text() for text in free if text.get_window_extent().x1 > figure.bbox.x1 + 1]
    return [f"{side}: {inches:.2f} in" for side, inches in over.items() if inches > 0.01] + wide


def is_empty(axes: Axes) -> bool:
    """Whether the axes have points, and none of them is within the frame."""
    lines = [line.get_xydata() for line in axes.lines if line.get_transform() == axes.transData]
    points = np.concatenate([np.empty((0, 2)), *lines])
    points = points[np.isfinite(points).all(1)]
    (left, right), (low, high) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
    inside = (left <= points[:, 0]) & (points[:, 0] <= right) & (low <= points[:, 1]) & (points[:, 1] <= high)
    return len(points) > 0 and not inside.any()


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_twice_the_same_and_nothing_is_cut_off_or_empty(name, six, tmp_path):
    for attempt in "ab":
        drawn = figure(name, StudyResults(six.folder.path))
        assert cut_off(drawn) == []
        assert not any(is_empty(axes) for axes in drawn.axes)
        save(drawn, tmp_path / attempt)
    for suffix in SUFFIXES:
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def legends(figure: Figure) -> Iterator[tuple[str, tuple[str, str]]]:
    """Text → colour and marker, of the lines in legends, with error bars or without."""
    for axes in figure.axes:
        for handle, text in zip(*axes.get_legend_handles_labels(), strict=True):
            line = handle[0] if isinstance(handle, Container) else handle
            if isinstance(line, Line2D):
                yield text.split(" (")[0], (to_hex(line.get_color()), str(line.get_marker()))


def test_a_method_has_one_colour_and_marker_in_all_figures(six):
    label = labels(six.study)
    chosen = {label(arm): (to_hex(one["color"]), one["marker"]) for arm, one in looks(six.study).items()}
    seen = dict.fromkeys(map(label, SIX), 0)
    for name in ("benchmarks", "dynamics", "clip_ratio", "pass_at_k"):
        for text, found in legends(figure(name, six)):
            if text in seen:
                assert found == chosen[text], (name, text)
                seen[text] += 1
    assert min(seen.values()) >= 4, seen


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(sorted(set(method_names()) - {"mpo_heads"})), min_size=1, max_size=20, unique=True))
def test_methods_of_a_study_look_different(names):
    """Those that are compared most look the same in every study; up to seven have colours of their own."""
    found = looks(study_with({"figures": [], "experiments": {"headline": {"methods": names}}}))
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
    found = looks(study_with({"experiments": {"headline": {"methods": ["tepo"], "vary": {key: values}}}}))
    others = [look for arm, look in found.items() if arm.startswith("tepo+")]
    assert ("tepo" in found and found["tepo"] in others) == same
    assert same or others[0] != others[1]


def test_labels_are_those_of_methods():
    own = {
        "mine": {"base": "tepo", "label": "Mine"},
        "tepo_short": {"base": "tepo"},
        "short_again": {"base": "tepo_short"},
        "token": {"base": "dapo"},
        "token_free": {"base": "token", "clip": None},
        "tepo": {"clip": {"low": 0.1}},
        "gspo": {"label": "GSPO here"},
    }
    label = labels(study_with({"methods": own}))
    shown = {name: label(name) for name in own}
    assert shown == {
        "mine": "Mine",
        "tepo_short": "TEPO, short",
        "short_again": "short again",
        "token": "token ratio",
        "token_free": "token, free",
        "tepo": "TEPO",
        "gspo": "GSPO here",
    }
    assert label("mine+updates_per_batch=1") == "Mine, 1 update" and label("start") == "initial model"
    assert label("nobody_knows") == "nobody knows"


def panel(results: StudyResults, name: str, number: int, metric: str, values: dict[int, float]) -> Axes:
    """A panel of a figure, with a metric of all steps of GRPO changed, by seed."""
    found = StudyResults(results.folder.path)
    mine = found.steps["arm"] == "grpo"
    for seed, value in values.items():
        found.steps.loc[mine & (found.steps["seed"] == seed) & found.steps[metric].notna(), metric] = value
    return figure(name, found).axes[number]


def line_of_grpo(axes: Axes) -> list[float]:
    (line,) = (line for line in axes.lines if line.get_label() == "GRPO")
    return [float(y) for y in line.get_ydata()]


def test_one_run_with_a_huge_gradient_does_not_decide_the_mean(six):
    """Norms 1 and 10⁶ have the geometric mean 10³, on a logarithmic axis."""
    axes = panel(six, "dynamics", 1, "gradient_norm", {0: 1.0, 1: 1e6})
    assert line_of_grpo(axes) == pytest.approx([1e3] * len(line_of_grpo(axes))) and axes.get_yscale() == "log"


def test_no_interval_of_a_share_leaves_0_to_100_and_none_is_drawn_at_zero(six):
    """Accuracies 0 and 100%: Student's interval over two seeds would be ±635 points."""
    axes = panel(six, "dynamics", 0, "validation_accuracy", {0: 0.0, 1: 1.0})
    ends = np.concatenate([path.vertices[:, 1] for band in axes.collections for path in band.get_paths()])
    assert ends.min() == 0 and ends.max() == 100
    axes = panel(six, "clip_ratio", 0, "clip_fraction_low", {0: 0.0, 1: 0.0})
    assert set(line_of_grpo(axes)) == {0.0} and axes.get_ylim()[0] == 0
    assert axes.get_yticklabels()[0].get_text() == "0"
