"""`python tables.py` writes the tables and figures of the pages here from ``records/``, which `encode.py` describes.

A page has its table between `<!-- table -->` and `<!-- end -->`. Differences are paired by seed, averaged over the
seeds of an initial model, and tested by Student's t over initial models.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import yaml

from policygrain.analysis.statistics import Difference, holm, over_seeds, student, unpaired

HERE = Path(__file__).parent
RECORDS = HERE / "records"
SPEC = yaml.safe_load((HERE / "tables.yaml").read_text(encoding="utf-8"))
INITIAL = "initial model"
AUC, SAMPLED, GREEDY, LENGTH = "AUC", "final, sampled", "final, greedy", "length"
LENGTHS, EQUAL, BEST = "mean length", "AUC at equal length", "best "
ROUND, EARLY, COSINE = "after the round", "after 4 updates", "cosine"


class Row(NamedTuple):
    """A row of a table: the mean difference arm − reference of ``pairs``, over the initial models of ``studies``.

    ``planned``: before the first run of the study. ``other``: the study of the reference; the same seeds are paired.
    """

    setting: str
    text: str
    studies: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    planned: bool = True
    other: str | None = None


@functools.cache
def record(study: str) -> pd.DataFrame:
    """The validations and measurements of a study, as `encode.py` describes them."""
    return pd.read_parquet(RECORDS / f"{study}.parquet")


@functools.cache
def settings(study: str) -> dict[str, Any]:
    """The study file as it was run."""
    return yaml.safe_load((RECORDS / f"{study}.study.yaml").read_text(encoding="utf-8"))


@functools.cache
def endpoint(study: str, name: str) -> pd.Series:
    """One number for each arm and seed; in points or tokens."""
    table = record(study)
    if name in (ROUND, EARLY, COSINE):  # a cosine is in hundredths
        rows = table[table["measure"] == ("estimate" if name == COSINE else "round")]
        column = COSINE if name == COSINE else "accuracy"
        if rows.empty:
            return pd.Series(dtype=float)
        last = rows.groupby("arm")["step"].transform("max").clip(upper=4 if name == EARLY else None)
        return 100 * rows[rows["step"] == last].set_index(["arm", "seed"])[column]
    curves = table[table["measure"] == "run"].sort_values("step").groupby(["arm", "seed"])
    if name in (AUC, LENGTHS):  # means over all training steps
        column, scale = ("accuracy", 100) if name == AUC else ("length", 1)
        return scale * curves[["step", column]].apply(lambda c: np.trapezoid(c[column], c.step) / np.ptp(c.step))
    if name == EQUAL:
        return at_equal_length(study)
    if name == LENGTH:  # of a response, at the last validation
        return curves["length"].last().astype(float)
    final = scores(study, name.removeprefix("final, "))
    return final if name == GREEDY or len(final) else 100 * curves["accuracy"].last().astype(float)


@functools.cache
def scores(study: str, decoding: str) -> pd.Series:
    """Final accuracy in percent, mean over benchmarks, by arm and seed; empty without evaluations."""
    file = RECORDS / f"{study}.scores.csv.gz"
    table = pd.read_csv(file, dtype={"sampled": str, "greedy": str}) if file.exists() else pd.DataFrame({decoding: []})
    table = table.dropna(subset=[decoding])
    if table.empty:
        return pd.Series(dtype=float)
    most = table["n"] if decoding == "sampled" else 1
    table["share"] = 100 * table[decoding].map(lambda digits: np.mean([int(digit) for digit in digits])) / most
    return table.groupby(["arm", "seed"])["share"].mean()


def at_equal_length(study: str) -> pd.Series:
    """The AUC without what goes with mean length: its slope over the arms of a setting, within seeds."""
    both = pd.DataFrame({"auc": endpoint(study, AUC), "length": endpoint(study, LENGTHS)})
    setting = both.index.get_level_values("arm").str.partition("+").get_level_values(2)
    centred = both - both.groupby([setting, both.index.get_level_values("seed")]).transform("mean")
    slope = centred.groupby(setting).apply(lambda c: (c.auc * c.length).sum() / ((c.length**2).sum() or np.nan))
    return both.auc - slope.reindex(setting).to_numpy() * both.length


def chosen(study: str, name: str, arm: str) -> pd.Series:
    """An endpoint of `best KIND+…`: of the arms `KIND_*+…` that with the largest AUC over the other half of models."""
    kind, _, suffix = arm.removeprefix(BEST).partition("+")
    auc = endpoint(study, AUC)
    candidates = [a for a in auc.index.unique(0) if a.startswith(kind) and a.partition("+")[2] == suffix]
    models = record(study).drop_duplicates("seed").set_index("seed")["initial_model"].sort_index()
    first = models.isin(sorted(models.unique())[: models.nunique() // 2])
    parts = []
    for half in (first, ~first):
        best = max(candidates, key=lambda a: auc[a][models.index[half]].mean())
        parts.append(endpoint(study, name)[best][models.index[~half]])
    return pd.concat(parts)


# ---- differences -----------------------------------------------------------------------------------------------------


def units(study: str, values: pd.Series) -> list[float]:
    """A number per seed as one per initial model, or as it is if all runs begin from one model."""
    models = record(study).drop_duplicates("seed").set_index("seed")["initial_model"]
    return values.groupby(models.reindex(values.index)).mean().tolist() if models.nunique() > 1 else values.tolist()


def of_arm(study: str, name: str, arm: str, like: pd.Index | None = None) -> pd.Series:
    """The endpoint of an arm by seed. Of an initial model that the seeds ``like`` share: the same number for each."""
    if arm.startswith(BEST):
        return chosen(study, name, arm)
    values = endpoint(study, name)
    by_seed = values[arm] if arm in values.index.get_level_values(0) else pd.Series(dtype=float)
    return pd.Series(by_seed.mean(), like) if arm == INITIAL and like is not None and len(by_seed) == 1 else by_seed


def difference(row: Row, name: str) -> Difference | None:
    """The row's difference in an endpoint; None if the studies do not have it."""
    if row.other is not None and set(record(row.other)["seed"]).isdisjoint(record(row.studies[0])["seed"]):
        (arm, reference), (study,) = row.pairs[0], row.studies
        sides = units(study, of_arm(study, name, arm)), units(row.other, of_arm(row.other, name, reference))
        return unpaired(*sides) if all(sides) else None
    values: list[float] = []
    for study in row.studies:
        found = []
        for arm, reference in row.pairs:
            if name == EQUAL and (row.other or arm.partition("+")[2] != reference.partition("+")[2]):
                return None  # of one setting alone
            one = of_arm(study, name, arm)
            found.append((one - of_arm(row.other or study, name, reference, one.index)).dropna())
        values += units(study, pd.concat(found, axis=1).mean(axis=1))
    return student(values) if values else None


def planned(study: str) -> Iterator[tuple[str, str]]:
    """The comparisons that the experiments of a study list, and each reference with its on-policy arm."""
    arms = set(record(study)["arm"])
    yield from (pair_of(text, "") for text in SPEC["planned"].get(study, []))
    for experiment in settings(study)["experiments"].values():
        reference = experiment.get("reference")
        for values in itertools.product(*experiment["vary"].values()):
            varied = dict(zip(experiment["vary"], values, strict=True))
            suffix = suffix_of(study, varied)
            for method in experiment["methods"]:
                others = [other for one, other in experiment.get("compare") or [] if one == method]
                others += [reference] if reference not in (None, method) else []
                yield from ((method + suffix, other + suffix) for other in others)
            fresh = f"{reference}{suffix_of(study, varied | {'off_policy_steps': 0})}"
            if varied.get("off_policy_steps") and fresh in arms:
                yield f"{reference}{suffix}", fresh


def suffix_of(study: str, varied: dict[str, Any]) -> str:
    """What the settings that vary add to the name of an arm."""
    training = settings(study)["training"]
    return "".join(f"+{key}={value}" for key, value in varied.items() if value != training.get(key))


def corrected(rows: Sequence[Row], endpoints: Sequence[str]) -> Iterator[tuple[Difference, float]]:
    """The difference in the first endpoint that a row has, and its p-value by Holm's method over the planned ones.

    The family of a row: the comparisons that its studies list, and the planned rows of the table with the same studies.
    """
    for row in rows:
        name = next(name for name in endpoints if difference(row, name) is not None)
        effect = difference(row, name)
        assert effect is not None
        if not row.planned:
            yield effect, effect.p
            continue
        of_rows = {other.pairs[0] for other in rows if other.planned and other.studies == row.studies}
        family = {pair: difference(row._replace(pairs=(pair,)), name) for pair in of_rows | {*planned(row.studies[0])}}
        tested = {pair: found.p for pair, found in family.items() if found is not None}
        yield effect, dict(zip(tested, holm([*tested.values()]), strict=True))[row.pairs[0]]


# ---- tables ----------------------------------------------------------------------------------------------------------


def pair_of(text: str, suffix: str) -> tuple[str, str]:
    """The arms of `a - b`, with ``suffix`` after names that are methods alone."""
    whole = (INITIAL, "before")
    arm, reference = (name if "+" in name or name in whole else name + suffix for name in text.split(" - "))
    return arm, reference


def evaluated(row: Row) -> bool:
    """Whether the final models of a row's studies were evaluated."""
    return all(len(scores(study, "sampled")) for study in row.studies)


def rows(page: str) -> list[Row]:
    """The rows of a page's table, from `tables.yaml`."""
    found = []
    for group in SPEC["pages"][page]["rows"]:
        pairs = [pair_of(text, group.get("arms", "")) for text in group["pairs"]]
        names = SPEC["names"] | SPEC["pages"][page].get("names", {})
        texts = [" − ".join(names.get(name, name) for name in text.split(" - ")) for text in group["pairs"]]
        rest = {"planned": group.get("planned", True), "other": group.get("other")}
        if "pooled" in group:
            found.append(Row(group["setting"], group["pooled"], tuple(group["studies"]), tuple(pairs), **rest))
            continue
        for text, pair in zip(texts, pairs, strict=True):
            found.append(Row(group["setting"], group.get("text", text), tuple(group["studies"]), (pair,), **rest))
    return found


def cell(found: Difference | None) -> str:
    """A mean with half of its 95% interval; without the interval if there are fewer than three units."""
    if found is None:
        return "–"
    half = found.high - found.mean
    digits = 2 if half < 0.2 else 1
    return f"{found.mean:+.{digits}f}{f' ± {half:.{digits}f}' if found.n > 2 else ''}".replace("-", "−")


def table(page: str) -> str:
    """The table of a page, in Markdown; a setting is named in its first row."""
    endpoints, lines = SPEC["pages"][page]["endpoints"], rows(page)
    names = [f"{name}†" if name == SAMPLED and not any(evaluated(row) for row in lines) else name for name in endpoints]
    cells = [["setting", "difference", *names, "p", "n"], ["---"] * (len(names) + 4)]
    before = None
    for row, (effect, p) in zip(lines, corrected(lines, endpoints), strict=True):
        texts = [cell(difference(row, name)) for name in endpoints]
        if SAMPLED in endpoints and not evaluated(row) and any(evaluated(other) for other in lines):
            texts[endpoints.index(SAMPLED)] += "†"
        known = "–" if effect.n < 3 else "< 0.001" if p < 0.001 else f"{p:.2g}"
        mark = "" if row.planned or effect.n < 3 else "‡"
        cells.append([row.setting if row.setting != before else "", row.text, *texts, known + mark, str(effect.n)])
        before = row.setting
    return "".join(f"|{'|'.join(texts)}|\n" for texts in cells)


def forest(page: str, endpoints: Sequence[str]) -> plt.Figure:
    """The rows of a page's table: each difference with its 95% interval, a panel for each endpoint."""
    shown = rows(page)
    size = (8.6, 0.9 + 0.21 * len(shown))
    figure, axes = plt.subplots(1, len(endpoints), figsize=size, sharey=True, layout="constrained")
    groups = [name for name, _ in itertools.groupby(row.setting for row in shown)]
    for panel, name in zip(axes, endpoints, strict=True):
        panel.axvline(0, color="0.6", linewidth=0.8)
        for at, row in enumerate(shown):
            if (found := difference(row, name)) is not None:
                half = found.high - found.mean if found.n > 2 else 0
                colour = f"C{groups.index(row.setting) % 10}"
                panel.errorbar(found.mean, at, xerr=half, fmt="o", markersize=3.5, linewidth=1.2, color=colour)
        panel.set(xlabel=f"{name}, {'hundredths' if name == COSINE else 'points'}")
        panel.set_yticks(range(len(shown)), [f"{row.text}  ({row.setting})" for row in shown])
    panel.invert_yaxis()
    return figure


def widths() -> plt.Figure:
    """AUC over mean length of the validation responses, of each clip range of three ratios in four settings."""
    figure, axes = plt.subplots(1, 4, figsize=(8.6, 2.6), layout="constrained")
    settings = itertools.product([("width", "2e-4"), ("width-half-rate", "1e-4")], ["", "+off_policy_steps=48"])
    for panel, ((study, rate), suffix) in zip(axes, settings, strict=True):
        length, auc = (endpoint(study, name).groupby("arm").mean() for name in (LENGTHS, AUC))
        arms = [arm for arm in auc.index if "".join(arm.partition("+")[1:]) == suffix]
        for ratio in ("token", "block", "sequence"):
            own = [arm for arm in arms if arm.startswith(ratio)]
            panel.plot(length[own], auc[own], "o", label=ratio)
        r = np.corrcoef(length[arms], auc[arms])[0, 1]
        panel.set(title=f"{suffix[-2:] or 16} old, {rate}: r = {r:.2f}", xlabel="mean tokens of a response")
    axes[0].set_ylabel("AUC, %")
    axes[0].legend(frameon=False)
    return figure


def curves() -> plt.Figure:
    """Validation accuracy and length of responses by step at two rates: means over initial models, 95% intervals."""
    figure, axes = plt.subplots(2, 2, figsize=(8.6, 5), sharex=True, sharey="col", layout="constrained")
    for panels, (study, rate) in zip(axes, {"age": "2e-4", "age-half-rate": "1e-4"}.items(), strict=True):
        for panel, column in zip(panels, ("accuracy", "length"), strict=True):
            for arm, rows in record(study).groupby("arm", sort=False):
                mean, *limits = np.array(rows.groupby("step")[column].apply(over_seeds).tolist()).T
                panel.plot(steps := rows["step"].unique(), mean, label=SPEC["names"].get(arm, arm))
                panel.fill_between(steps, *limits, alpha=0.15)
            panel.set(title=f"rate {rate}", xlabel="optimizer step", ylabel=f"{column} in validation")
    panel.legend(frameon=False)
    return figure


def page_with_table(name: str) -> str:
    """The text of a page with its table as it should be."""
    text = (HERE / f"{name}.md").read_text(encoding="utf-8")
    before, _, rest = text.partition("<!-- table -->\n")
    return f"{before}<!-- table -->\n\n{table(name)}\n<!-- end -->{rest.partition('<!-- end -->')[2]}"


if __name__ == "__main__":
    plt.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False})
    (HERE / "figures").mkdir(exist_ok=True)
    for page, shown in ((page, spec["figure"]) for page, spec in SPEC["pages"].items()):
        (HERE / f"{page}.md").write_text(page_with_table(page), encoding="utf-8")
        figure = {"widths": widths, "curves": curves}[shown]() if isinstance(shown, str) else forest(page, shown)
        figure.savefig(HERE / "figures" / f"{page}.png", dpi=130, metadata={"Software": None})
