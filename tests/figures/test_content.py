"""What figures and tables show, from made-up records: positions, intervals and texts on their axes, numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure

from policygrain.analysis.claims import Claim, ClaimResult, Comparison, Finding, Published
from policygrain.analysis.statistics import SEEDS, Difference, over_seeds
from policygrain.analysis.verdicts import PValues
from policygrain.cli import main
from policygrain.errors import NoResults, UserError
from policygrain.figures import cases, catalogue, rows, tables
from policygrain.figures import intervals as by_position
from policygrain.figures.catalogue import check_figures, draw, figure
from policygrain.figures.labels import labels, name_of
from policygrain.measurements import CasesRecord
from policygrain.merging import merge
from policygrain.objective import method
from policygrain.paths import START, StudyFolder
from policygrain.records import read_record, write_record
from policygrain.results import StudyResults, model_evaluation
from policygrain.study import Study, load_study, parse_study

from ..support.made_up import make_up

ROOT = Path(__file__).parents[2]
label = labels(load_study(ROOT / "studies/laptop-full.yaml"))
STARTS = np.arange(4)  # initial models that the instruments of the study measure


def study_with(**changes: Any) -> Study:
    """The laptop study with six seeds and without controls, changed key by key."""
    content = {
        "base": "studies/laptop-full.yaml",
        "name": "reduced",
        "seeds": [0, 1, 2, 3, 4, 5],
        "sanity_checks": None,
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


def by_start(place: int) -> float:
    """Points that the n-th method of the rounds is behind the first at the end, mean over initial models."""
    return float(-place * (1 + 0.1 * STARTS).mean())


def test_rounds_are_sorted_with_the_mean_over_start_models(made: StudyResults) -> None:
    (axes,) = figure("rounds", made).axes
    section = made.study.rounds
    assert section is not None
    assert labels_of(axes) == [label(name) for name in section.methods[1:]], "each is worse than the one before"
    assert [x for x, _ in points(axes)] == pytest.approx([by_start(n) for n in range(1, len(section.methods))])
    ends = next(line.get_xdata() for line in axes.lines if list(line.get_ydata()) == [0, 0])
    expected = over_seeds(-(1 + 0.1 * STARTS))
    assert list(ends) == pytest.approx([expected.low, expected.high])
    marks = next(line.get_xdata() for line in axes.lines if line.get_marker() == "|")
    assert sorted(marks) == pytest.approx(sorted(-(1 + 0.1 * STARTS))), "one mark for each initial model"


def test_regimes_have_a_row_per_method_and_a_panel_per_regime(tmp_path: Path) -> None:
    """Areas are equal; the token ratio solves 7 of 12 problems, the others 6."""
    regime = {"methods": ["none", "token", "token_clip"], "reference": "none", "compare": [["token_clip", "token"]]}
    both = {
        "on_policy": regime | {"vary": {"off_policy_steps": [0]}},
        "old": regime | {"vary": {"off_policy_steps": [2]}},
    }
    study = study_with(experiments=both, figures=["regimes"])
    drawn = figure("regimes", StudyResults(make_up(study, tmp_path, {"token": 7})))
    on_policy, old = drawn.axes
    assert (on_policy.get_title(), old.get_title()) == ("on-policy", "rollouts 2 steps old")
    assert labels_of(on_policy) == ["token ratio", "token ratio, clip"]
    assert [x for x, _ in points(on_policy) if x] == pytest.approx([100 / 12] * 2), "sampled and greedy"
    assert not any(x for x, _ in points(old))
    assert drawn.get_supxlabel() == "points minus no ratio"


def test_estimators_show_two_distances_and_leave_out_clips_that_are_none(made: StudyResults) -> None:
    drawn = figure("estimators", made)
    bias, snr, batch, clipped = drawn.axes
    section = made.study.estimators
    assert section is not None
    names = section.methods
    assert labels_of(bias) == [label(name) for name in names]
    expected = [0.9 - 0.01 * n + 0.01 * STARTS.mean() for n in range(1, len(names) + 1)]
    assert [x for x, _ in points(bias)] == pytest.approx(expected * 2)
    assert [axes.get_xscale() for axes in (snr, batch, clipped)] == ["log", "linear", "symlog"]
    free = [n for n in names if method(n, made.study.methods).clip.name == "none"]
    assert len(points(clipped)) == 2 * (len(names) - len(free)) > 0
    assert points(clipped)[0][0] == pytest.approx(0.1), "percent"
    (legend,) = drawn.legends
    assert [text.get_text()[:10] for text in legend.get_texts()] == ["4 updates ", "16 updates"]


def test_ratio_variance_has_every_ratio_without_a_clip(made: StudyResults) -> None:
    variance, share = figure("ratio_variance", made).axes
    shown = [text.get_text() for text in variance.get_xticklabels()]
    assert (
        shown[:3] == ["token", "block K=5, uniform, normalised", "block K=5, joint, normalised"]
        and "no ratio" not in shown
    )
    found = curves(variance)
    assert found["after 4 updates"][:2] == pytest.approx([0.01 * 2 * 4, 0.01 * 3 * 4]), "second and third estimator"
    assert curves(share)["after 16 updates"] == pytest.approx([0.9] * len(shown))


def test_intervals_of_shares_stay_between_0_and_1() -> None:
    for values in ([0.99, 0.5, 0.9], [1.0, 1.0, 0.2], [0.01, 0.02, 0.6]):
        found = by_position.over_logits(np.array(values))
        assert 0 <= found.low < found.mean < found.high <= 1
    assert by_position.over_logits(np.array([1.0, 1.0])) == pytest.approx((1, 1, 1))


def test_block_sizes_are_compared_with_k_5_in_a_round(made: StudyResults) -> None:
    (axes,) = figure("block_size", made).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["2", "3", "5"]
    section = made.study.rounds
    assert section is not None
    places = [section.methods.index(name) for name in ("mpo_k2", "mpo_k3", "mpo")]
    means = [float(line.get_ydata()[i]) for line in axes.lines[1:2] for i in range(3)]
    assert means == pytest.approx([by_start(n) - by_start(places[2]) for n in places])
    left, right = figure("future_weight", made).axes
    assert [text.get_text() for text in left.get_xticklabels()] == ["0.1", "0.3", "0.4"]
    assert left.get_ylabel() == "tokens clipped (%)" and "cosine" in right.get_ylabel()


def test_ranges_have_a_panel_per_ratio_and_a_line_per_regime(tmp_path: Path) -> None:
    methods = {
        f"{ratio}_{low}": {"base": f"{ratio}_clip", "clip": {"low": low, "high": high}}
        for ratio in ("token", "sequence")
        for low, high in ((0.1, 0.14), (0.003, 0.004), (0.4, 0.56))
    }
    experiment = {"methods": list(methods), "vary": {"updates_per_batch": [1, 4]}, "evaluate": False}
    study = study_with(methods=methods, experiments={"ranges": experiment}, seeds=[0, 1], figures=["ranges"])
    token, sequence = figure("ranges", StudyResults(make_up(study, tmp_path, {}))).axes
    assert (token.get_title(), sequence.get_title()) == ("token ratio", "sequence ratio")
    assert [text.get_text() for text in token.get_xticklabels()] == ["0.003/\n0.004", "0.1/\n0.14", "0.4/\n0.56"]
    assert list(curves(token)) == ["updates per batch 1", "updates per batch 4"]
    assert curves(token)["updates per batch 4"] == pytest.approx([27.5] * 3), "areas of 25 and 30"


def difference(mean: float, low: float, high: float) -> Difference:
    return Difference(mean, low, high, 1.0, 8, SEEDS, 1.0, (), lambda _: 0.5, lambda _: 0.5)


def result(name: str, verdict: Any, effects: list[tuple[float, float, float]]) -> ClaimResult:
    published = Published(size=3.0, where="table 1")
    comparison = Comparison(statistic="accuracy", of="tepo", than="dapo", claimed="above", published=published)
    claim = Claim(source="s", text="A claim.", comparisons=[comparison] * max(1, len(effects)))
    findings = [Finding(difference(*effect), PValues(1, 1, 0.01), verdict, None) for effect in effects]
    return ClaimResult(name, claim, findings, verdict, "" if effects else "no records of it")


def test_verdicts_are_in_units_of_half_the_interval_and_clipped_with_arrows() -> None:
    """The published size, 3 points, is drawn where it is within the axis; an interval without an end is not."""
    decided = [
        result("one_claim", "holds", [(4.0, 3.0, 5.0), (30.0, 28.0, 32.0)]),
        result("another", None, []),
        result("third", "inconclusive", [(0.5, -np.inf, np.inf)]),
    ]
    (axes,) = rows.draw_claims(decided, label).axes
    assert [x for x, _ in points(axes)] == pytest.approx([4.0]), "the second effect is beyond the axis"
    arrows = [(float(line.get_xdata()[0]), line.get_marker()) for line in axes.lines if line.get_marker() in ("<", ">")]
    assert arrows == [(6.0, ">")]
    assert [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "|"] == [3.0, 1.5]
    texts = [text.get_text().replace("\n", " ") for text in axes.texts if text.get_text() != "A claim."]
    assert texts == ["holds, smaller than published", "no records", "no records", "inconclusive"]
    assert labels_of(axes) == ["accuracy: TEPO > DAPO"] * 3


@given(st.sampled_from(["above", "below", "apart"]), st.floats(-9, 9), st.floats(0.1, 9))
def test_what_is_claimed_is_at_the_right(claimed: Any, effect: float, half: float) -> None:
    comparison = Comparison(statistic="accuracy", of="a", than="b", claimed=claimed)
    finding = Finding(difference(effect, effect - half, effect + half), PValues(1, 1, 1), "inconclusive", None)
    shown, size = rows.claimed_effect(comparison, finding)
    expected = {"above": effect, "below": -effect, "apart": abs(effect)}[claimed]
    assert shown == pytest.approx((expected / half, expected / half - 1, expected / half + 1)) and size is None


def test_a_headline_that_is_not_evaluated_has_no_accuracies(tmp_path: Path) -> None:
    experiments = {"headline": {"methods": ["grpo", "tepo"], "evaluate": False}}
    study = study_with(experiments=experiments, figures=["benchmarks"])
    with pytest.raises(UserError, match="'benchmarks' needs an experiment named 'headline' that is evaluated"):
        catalogue.check_figures(study)
    frame, markdown = tables.results(StudyResults(make_up(study, tmp_path, {})))
    assert set(frame["arm"]) == {START}
    assert "difference, points" not in markdown


def test_headline_figures_show_the_study_s_own_updates_per_batch(made: StudyResults) -> None:
    assert catalogue.headline(made.study) == ["grpo", "dapo", "tepo"]
    assert [text.get_text() for text in legend_of(figure("clip_ratio", made))] == ["GRPO", "DAPO", "TEPO"]


def legend_of(drawn: Figure) -> list[Any]:
    return list(drawn.legends[0].get_texts())


def test_labels_of_arms_read_well(made: StudyResults) -> None:
    assert (
        label("tepo+updates_per_batch=16") == "TEPO, 16 updates" and label("mpo+updates_per_batch=1") == "MPO, 1 update"
    )
    assert label("dapo+shuffle_rewards=True") == "DAPO, shuffled rewards"
    assert label("dapo+learning_rate=0.0") == "DAPO, learning rate 0"
    assert label("dapo+sampling_seed=1") == "DAPO, other sampling seeds"
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


def test_the_ablation_compares_variants_with_the_same_settings(tmp_path: Path) -> None:
    """TEPO is right on 25 points more than its variants; with one update per batch it is not."""
    variants = {"methods": ["tepo_v1"], "vary": {"updates_per_batch": [1, 4]}}
    study = study_with(seeds=[0, 1], experiments={"ablation": variants})
    frame, text = tables.ablation(StudyResults(make_up(study, tmp_path, {"tepo": 9})))
    rows = frame.set_index("arm")
    assert rows.loc["tepo_v1", "compared_with"] == "tepo" and rows.loc["tepo_v1", "difference"] == pytest.approx(-25)
    other = rows.loc["tepo_v1+updates_per_batch=1"]
    assert (other["compared_with"], other["difference"]) == ("tepo+updates_per_batch=1", pytest.approx(0))
    assert not rows.loc["dapo", "compared_with"]
    assert "| TEPO v1, 4 updates | sequence |" in text and "] to TEPO, 1 update |" in text


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
    assert "Rows with another n have other seeds" in text and "samplers differ" not in text


def test_pairs_that_differ_in_the_sampler_are_marked(made: StudyResults) -> None:
    _, text = tables.results(made)
    assert "| GRPO − DAPO \\* |" in text and "\\* The samplers differ as well" in text
    assert "| GRPO − TEPO |" in text and "initial model \\*" not in text and "| method | n |" not in text


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("regimes", {}, "an experiment with a `reference`"),
        ("ranges", {}, "an experiment named 'ranges'"),
        ("phase", {}, "two keys under `vary`"),
        ("rounds", {"rounds": {"methods": ["token_clip"]}}, "with two methods or more"),
        ("estimators", {"estimators": None}, "measurements of estimators; set `estimators:"),
        (
            "ratio_variance",
            {"estimators": {"methods": ["token_clip", "none"]}},
            "a method with a ratio and `clip: null`",
        ),
        (
            "block_size",
            {"rounds": {"methods": ["token_clip", "block"]}},
            "differ in block.size alone, in `rounds.methods`",
        ),
        ("future_weight", {"estimators": {"methods": ["token_clip", "block"]}}, "differ in block.future_weight alone"),
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
    assert "| GRPO − TEPO | -25.0 [" in text and "| TEPO − initial model | +75.0 [" in text
    assert found.scores("tepo", "count").shape == (2, 12)


def test_missing_records_say_what_would_make_them(smoke: Study, drawable: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run has been trained yet\. Run `snakemake all`"):
        draw("dynamics", StudyResults(tmp_path / "empty", smoke), tmp_path / "x")
    with pytest.raises(UserError, match=r"nothing has been evaluated yet\. Run `snakemake all`"):
        draw("benchmarks", StudyResults(tmp_path / "empty", smoke), tmp_path / "x")
    with pytest.raises(UserError, match=r"no estimators have been measured\. Run `snakemake all`"):
        draw("ratio_variance", StudyResults(tmp_path / "empty", smoke), tmp_path / "x")
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


# ---- the exact cases -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def record() -> CasesRecord:
    return read_record(CasesRecord, ROOT / "docs" / "cases.json", "Run `policygrain cases`.")


def test_the_first_column_names_every_ratio_and_marks_wrong_signs(record: CasesRecord) -> None:
    figure = cases.draw(record)
    for row, case in enumerate(record.cases):
        axes = figure.axes[2 * row]
        found = [e for e in case.estimators if e.clip is None]
        assert [text.get_text() for text in axes.get_yticklabels()] == [e.name for e in found]
        crosses = {int(line.get_ydata()[0]) for line in axes.lines if line.get_marker() == "x"}
        assert crosses == {i for i, e in enumerate(found) if e.push * case.exact_push < 0}


def test_no_point_is_outside_its_panel(record: CasesRecord) -> None:
    for axes in cases.draw(record).axes:
        (left, right), limits = axes.get_xlim(), sorted(axes.get_ylim())
        for line in axes.lines:
            if line.get_transform() == axes.transData:
                x, y = np.asarray(line.get_xydata(), dtype=float).T
                assert (left <= x).all() and (x <= right).all()
                assert (limits[0] <= y).all() and (y <= limits[1]).all()
