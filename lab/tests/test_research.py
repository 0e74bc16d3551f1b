"""The pages of the research have the tables that their records give; ten of their numbers are recomputed otherwise."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from scipy import stats

from policygrain.study import load_study
from policygrain.study.runs import run_matrix
from tests.support.files import load_script

RESEARCH = Path(__file__).parents[1] / "research"
RECORDS = RESEARCH / "records"
OLD16, OLD48, TWICE = "+off_policy_steps=16", "+off_policy_steps=48", "+learning_rate=0.0004"
TUNED = ("age-half-rate", "tune-unclipped", "tune-clipped", "tune-second", "tune-third")
PAGES = sorted(path.stem for path in RESEARCH.glob("*.md") if path.stem != "README")


@pytest.fixture(scope="module")
def tables():
    return load_script(RESEARCH / "tables.py")


@pytest.mark.parametrize("page", PAGES)
def test_the_table_of_a_page_is_that_of_its_records(tables, page):
    """After a change of a record or of tables.yaml: `python lab/research/tables.py`."""
    assert (RESEARCH / f"{page}.md").read_text() == tables.page_with_table(page)


def runs(*studies: str) -> pd.DataFrame:
    table = pd.concat([pd.read_parquet(RECORDS / f"{study}.parquet") for study in studies])
    table = table[table["measure"] == "run"].sort_values("step")
    return table.assign(accuracy=100 * table["accuracy"].astype(float))


def area(table: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracy over training by the trapezoid rule, which validations at equal distances make a weighted mean."""
    steps = table["step"].groupby(table["arm"])
    ends = (table["step"] == steps.transform("max")) | (table["step"] == 0)
    weighted = table.assign(weight=np.where(ends, 0.5, 1.0))
    weighted["accuracy"] *= weighted["weight"]
    sums = weighted.groupby(["arm", "initial_model", "seed"])[["accuracy", "weight"]].sum()
    return (sums["accuracy"] / sums["weight"]).groupby(["arm", "initial_model"]).mean().unstack("arm")


def greedy(study: str) -> pd.DataFrame:
    """Final accuracy of greedy responses in percent by arm and initial model; benchmarks have as many problems."""
    table = pd.read_csv(RECORDS / f"{study}.scores.csv.gz", dtype={"greedy": str})
    table["right"] = [digits.count("1") for digits in table["greedy"]]
    table["asked"] = table["greedy"].str.len()
    table = table.merge(runs(study)[["seed", "initial_model"]].drop_duplicates(), on="seed")
    sums = table.groupby(["arm", "initial_model"])[["right", "asked"]].sum()
    return (100 * sums["right"] / sums["asked"]).unstack("arm")


def text(differences: pd.Series) -> str:
    low, high = stats.ttest_1samp(differences.dropna(), 0).confidence_interval(0.95)
    return f"{(low + high) / 2:+.1f} ± {(high - low) / 2:.1f}".replace("-", "−")


def cells(page: str, setting: str, difference: str) -> list[str]:
    """The numbers in a row of a page's table; a setting is named in its first row."""
    text = (RESEARCH / f"{page}.md").read_text().partition("<!-- table -->")[2].partition("<!-- end -->")[0]
    named = ""
    for line in text.strip().splitlines():
        _, first, second, *numbers, _ = line.split("|")
        named = first or named
        if (named, second) == (setting, difference):
            return numbers
    raise AssertionError(f"{page}: no row {setting}, {difference}")


def test_ten_numbers_of_the_pages():
    night = area(runs("night", "night-replicate"))
    night_greedy = pd.concat([greedy("night"), greedy("night-replicate")])
    recipes, tool, mismatch = (area(runs(name)) for name in ("recipes", "turns-replicate", "mismatch"))
    recipes_greedy = greedy("recipes")
    clip, clip_twice = cells("old-rollouts", "48 old, 2e-4", "token clip − token"), "token_clip" + OLD16 + TWICE
    assert clip[0] == text(night["token_clip" + OLD48] - night["token" + OLD48])
    assert clip[3] == text(night_greedy["token_clip" + OLD48] - night_greedy["token" + OLD48])
    twice = cells("old-rollouts", "16 old, 4e-4", "token clip − token")
    assert twice[0] == text(night[clip_twice] - night["token" + OLD16 + TWICE])
    assert twice[3] == text(night_greedy[clip_twice] - night_greedy["token" + OLD16 + TWICE])
    tepo = cells("presets", "one sampler", "TEPO − GRPO")
    assert tepo[0] == text(recipes["tepo"] - recipes["grpo"])
    assert tepo[2] == text(recipes_greedy["tepo"] - recipes_greedy["grpo"])
    own = cells("turns", "own rates", "sequence clip − token clip")
    assert own[0] == text(tool["sequence_clip" + OLD16 + TWICE] - tool["token_clip" + OLD16])
    costs = [mismatch[f"none+sampler_bits={bits}"] - mismatch["none"] for bits in (6, 4)]
    assert cells("mismatch", "6 and 4 bits", "cost: no correction − exact")[0] == text(sum(costs) / 2)
    one_sampler = ["grpo", "token_clip", "tepo", "mpo", "gspo_chosen", "dapo_loss_published", "tepo_published", "gspo"]
    lengths = runs("recipes").groupby("arm")["length"].mean()
    for values, published in ((lengths, "0.97"), (recipes_greedy.mean(), "0.42")):
        correlation = np.corrcoef(recipes.mean()[one_sampler], values[one_sampler])[0, 1]
        assert f"{correlation:.2f}" == published and published in (RESEARCH / "presets.md").read_text()


def test_own_ranges_are_chosen_on_the_other_half_of_the_models():
    """The token ratio's clip and the block ratio's, 48 old, at 2e-4, and how far AUC goes with length."""
    auc, final = area(runs("width")), greedy("width")
    sides = {}
    for kind in ("token", "block"):
        arms = [arm for arm in auc.columns if arm.startswith(kind) and arm.endswith(OLD48)]
        halves = [auc.index[:8], auc.index[8:]]
        best = {half[0]: auc.loc[half, arms].mean().idxmax() for half in halves}
        chosen = [(half, best[other[0]]) for half, other in (halves, halves[::-1])]
        sides[kind] = [pd.concat([table.loc[half, arm] for half, arm in chosen]) for table in (auc, final)]
    found = cells("old-rollouts", "own ranges, 48 old, 2e-4", "block clip − token clip")
    differences = [block - token for block, token in zip(sides["block"], sides["token"], strict=True)]
    assert [found[0], found[3]] == [text(values) for values in differences]
    assert abs(np.mean(differences[0])) < 1


def test_collapses_of_the_first_page():
    """Runs at 4e-4 that end below half of their initial accuracy, of 168 problems."""
    table = runs("night", "night-replicate")
    by_run = table[table["arm"].str.contains(TWICE, regex=False)].groupby(["arm", "seed"])["accuracy"]
    right = [(number * 1.68).round() for number in (by_run.first(), by_run.last())]
    collapsed = 2 * right[1] < right[0]
    clipped = collapsed.index.get_level_values("arm").str.contains("_clip")
    assert (collapsed[clipped].sum(), clipped.sum()) == (0, 192)
    assert (collapsed[~clipped].sum(), (~clipped).sum()) == (66, 256)


def test_numbers_of_the_page_on_a_constant_age():
    """The clip's gain over no ratio, runs that end below their beginning, and how AUC goes with mean length."""
    table, auc = runs("age"), area(runs("age"))
    found = cells("constant-age", "16 old, 2e-4", "token clip − no ratio")
    assert [found[0], found[3]] == [text(values["token_clip"] - values["none"]) for values in (auc, greedy("age"))]
    by_run = table.groupby(["arm", "seed"])["accuracy"]
    below = (by_run.last() < by_run.first()).groupby("arm").sum()
    assert (below["none"], below["token"], below["token_clip"], below["none+off_policy_steps=0"]) == (12, 2, 0, 0)
    slower = cells("constant-age", "1e-4 − 2e-4", "token clip")
    pairs = [(slower[0], area(runs("age-half-rate")), auc), (slower[3], greedy("age-half-rate"), greedy("age"))]
    assert all(number == text(one["token_clip"] - two["token_clip"]) for number, one, two in pairs)


def test_what_is_judged_was_chosen_by_the_rule(tables):
    """Of tune-unclipped.yaml: the mean of AUC and final sampled accuracy, over 16 models, of two rates and widths."""
    scores = []
    for study in TUNED:
        parts = [tables.endpoint(study, of) / 2 for of in (tables.AUC, tables.SAMPLED)]
        score = sum(parts).dropna().reset_index(name="score")
        rate = f"+learning_rate={tables.settings(study)['training']['learning_rate']}"
        arm = score["arm"].where(score["arm"].str.contains("learning"), score["arm"] + rate)
        scores.append(score.assign(arm=arm, kind=arm.str.replace(r"(_half|_twice)?\+learning.*", "", regex=True)))
    table = pd.concat(scores)
    first = (
        table[table["seed"] < 2104].groupby(["kind", "arm"])["score"].mean().groupby("kind").nlargest(2).droplevel(0)
    )
    by_arm = table.groupby(["kind", "arm"])["score"]
    whole = by_arm.mean()[by_arm.size() == 16]
    assert first.index.isin(whole.index).all()
    chosen = [name.partition("+learning_rate=")[::2] for _, name in whole.groupby("kind").idxmax()]
    judge, third = (load_study(RESEARCH / "studies" / f"{name}.yaml") for name in ("judge", "tune-third"))
    named = {f"{kind}+learning_rate={rate}".removesuffix("+learning_rate=0.0001") for kind, rate in chosen}
    assert {f"{arm}_half" if "clip" in arm else arm for arm in run_matrix(judge).arms} == named
    for clip in ("token_clip", "sequence_clip"):
        assert judge.methods[clip].clip == third.methods[f"{clip}_half"].clip


def test_records_are_small_and_name_their_commit():
    files = [path for path in RECORDS.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 8 * 2**20
    listed = (RECORDS / "README.md").read_text()
    for path in RECORDS.glob("*.parquet"):
        for commit in pq.read_schema(path).metadata[b"commit"].decode().split():
            assert f"`{commit[:12]}" in listed, path
        assert (RECORDS / f"{path.stem}.study.yaml").exists()


@pytest.mark.parametrize("path", sorted((RESEARCH / "studies").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_study_of_the_research_loads(path):
    assert load_study(path).experiments
