"""Numbers of README and docs, computed again from the published records by json and numpy, without policygrain.

To check a number of a page, add a line to NUMBERS under the page and the record (`docs/records/NAME.zip`): the text of
the page with a format field (`{:+.1f}`) where each number is, and a function of the record that returns the numbers in
their order. The test fills them in and looks for the text in the page, where − counts as - and line ends count as
spaces. The text is as long as it takes to occur once.

Functions of a record and an arm return a number per seed: `area`, `final` (sampled or greedy), or a lambda over
`metrics`. `paired` subtracts those of two arms by seed; `mean_t` is mean and Student's 95% interval. Accuracies have
intervals of their own: `tango` for a difference, `wilson` for one arm (docs/statistics.md). For example, the area under
the learning curve of TEPO minus that of DAPO:

    ("docs/x.md", "laptop"): [
        ("TEPO − DAPO {:.1f} [{:.1f}, {:.1f}]", lambda r: mean_t(paired(area, r, "tepo", "dapo"))),
    ],
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import stdtrit

pytestmark = pytest.mark.release
ROOT = Path(__file__).parents[2]
HOUR = "earlier/hour"
Array = NDArray[np.float64]
Numbers = Sequence[float]


def files(record: str, pattern: str) -> Iterator[tuple[int, str]]:
    """(seed, text) of the files of a record whose names match, where `seed#` stands for the seed."""
    with ZipFile(ROOT / "docs" / "records" / f"{record}.zip") as archive:
        for name in archive.namelist():
            if found := re.fullmatch(re.escape(pattern).replace(r"seed\#", r"seed(\d+)"), name):
                yield int(found[1]), archive.read(name).decode()


@functools.cache
def metrics(record: str, arm: str) -> dict[int, list[dict[str, Any]]]:
    """Seed → the rows of metrics.jsonl; the last is the final validation."""
    found = files(record, f"runs/{arm}/seed#/metrics.jsonl")
    return {seed: [json.loads(line) for line in text.splitlines()] for seed, text in found}


@functools.cache
def scores(record: str, arm: str, decoding: str) -> dict[int, list[Array]]:
    """Seed → for each benchmark the score of each problem, `sampled` (mean of the responses) or `greedy`."""
    key = {"sampled": "per_problem", "greedy": "greedy"}[decoding]
    found = files(record, f"runs/{arm}/seed#/evaluation/records.json")
    return {seed: [np.array(row[key]) for row in json.loads(text)["records"]] for seed, text in found}


def area(record: str, arm: str) -> dict[int, float]:
    """Seed → mean height of the curve of validation accuracy over steps, by trapezia, in points."""
    found = {}
    for seed, rows in metrics(record, arm).items():
        points = [(row["step"], row["validation_accuracy"]) for row in rows if "validation_accuracy" in row]
        x, y = np.array(points).T
        found[seed] = 100 * float(np.sum((y[1:] + y[:-1]) / 2 * np.diff(x)) / (x[-1] - x[0]))
    return found


def area_at_samples(record: str, arm: str) -> dict[int, float]:
    """As ``area``, over the first 64 × 24 responses instead of all steps."""
    found = {}
    for seed, rows in metrics(record, arm).items():
        spent = [0, *(row["total_samples"] for row in rows if "total_samples" in row)]
        points = [(spent[row["step"]], row["validation_accuracy"]) for row in rows if "validation_accuracy" in row]
        x, y = np.array(points).T
        at = np.linspace(0, 64 * 24, 401)
        found[seed] = 100 * float(np.trapezoid(np.interp(at, x, y), at) / at[-1])
    return found


def last(record: str, arm: str) -> dict[int, float]:
    """Seed → validation accuracy at the end of training, in points."""
    found = {}
    for seed, rows in metrics(record, arm).items():
        *_, found[seed] = (100 * row["validation_accuracy"] for row in rows if "validation_accuracy" in row)
    return found


def ends_below_half(record: str, rate: str, *methods: str) -> int:
    """Number of runs on rollouts 64 and 128 steps old that end below half of the initial accuracy."""
    arms = [f"{method}+ahead={age}+learning_rate={rate}" for method in methods for age in (64, 128)]
    starts = {seed: rows[0]["validation_accuracy"] for seed, rows in metrics(record, arms[0]).items()}
    return sum(end < 100 * starts[seed] / 2 for arm in arms for seed, end in last(record, arm).items())


def final(record: str, arm: str, decoding: str) -> dict[int, float]:
    """Seed → accuracy of the final model, mean over benchmarks, in percent."""
    found = scores(record, arm, decoding)
    return {seed: 100 * float(np.mean([s.mean() for s in benchmarks])) for seed, benchmarks in found.items()}


def paired(measure: Callable[..., dict[int, float]], record: str, one: str, other: str, *more: Any) -> list[float]:
    """The differences of two arms, of the seeds that both have."""
    a, b = measure(record, one, *more), measure(record, other, *more)
    return [a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())]


def mean_t(values: Numbers) -> Numbers:
    """Mean and Student's 95% interval."""
    n, mean = len(values), float(np.mean(values))
    half = float(stdtrit(n - 1, 0.975) * np.std(values, ddof=1) / n**0.5)
    return mean, mean - half, mean + half


def wilson(record: str, arm: str, decoding: str) -> Numbers:
    """Mean and 95% interval of an accuracy in percent, for each benchmark and then their average.

    Student's t over seeds, with a standard error that scales with √(μ(1 − μ)).
    """
    found = np.array([[s.mean() for s in seed] for seed in scores(record, arm, decoding).values()])
    numbers: list[float] = []
    for seeds in (*found.T, found.mean(1)):
        n, mean = len(seeds), seeds.mean()
        c = stdtrit(n - 1, 0.975) ** 2 * seeds.var(ddof=1) / n / (mean * (1 - mean))
        half = np.sqrt(c * mean * (1 - mean) + c**2 / 4)
        numbers += [100 * mean, 100 * (mean + c / 2 - half) / (1 + c), 100 * (mean + c / 2 + half) / (1 + c)]
    return numbers


def by_model(of_seeds: dict[int, list[Array]]) -> dict[int, list[Array]]:
    """Scores by initial model, as `by_start`."""
    if len(of_seeds) != 32:
        return of_seeds
    return {s: [(x + y) / 2 for x, y in zip(of_seeds[s], of_seeds[s + 16], strict=True)] for s in sorted(of_seeds)[:16]}


def tango(record: str, one: str, other: str, decoding: str) -> Numbers:
    """Mean and 95% interval of a difference of accuracies in points, paired by seed.

    Student's t over seeds, with a standard error that scales as that of paired proportions (Tango 1998).
    """
    a, b = (by_model(scores(record, arm, decoding)) for arm in (one, other))
    pairs = [[x - y for x, y in zip(a[seed], b[seed], strict=True)] for seed in sorted(a.keys() & b.keys())]
    seeds = np.array([np.mean([p.mean() for p in benchmarks]) for benchmarks in pairs])
    gained, lost = (np.mean([np.maximum(sign * p, 0).mean() for s in pairs for p in s]) for sign in (1, -1))
    n, mean = len(seeds), seeds.mean()
    scale = stdtrit(n - 1, 0.975) ** 2 * seeds.var(ddof=1) / n / (gained + lost - mean**2)
    value = np.linspace(-1, 1, 2_000_001)
    linear = -gained - lost + (2 - gained + lost) * value
    share = (np.sqrt(np.maximum(linear**2 + 8 * lost * value * (1 - value), 0)) - linear) / 4
    inside = value[(value - mean) ** 2 <= scale * (2 * share + value * (1 - value))]
    return 100 * mean, 100 * inside[0], 100 * inside[-1]


def late_rise(record: str, arm: str) -> list[float]:
    """Rise of validation accuracy over the last quarter of the steps, by its slope there, in points, of each seed."""
    rises = []
    for rows in metrics(record, arm).values():
        points = [(row["step"], row["validation_accuracy"]) for row in rows if "validation_accuracy" in row]
        x, y = np.array([point for point in points if point[0] >= 0.75 * points[-1][0]]).T
        rises.append(100 * float(np.polyfit(x, y, 1)[0] * (x[-1] - x[0])))
    return rises


def after_round(record: str, method: str, steps: int, column: str = "reward") -> dict[int, float]:
    """Initial model → reward after the last update of a round, or ``before`` it, in points."""
    found = {}
    for seed, text in files(record, "rounds/seed#.json"):
        rows = [row for row in json.loads(text)["rows"] if row["method"] == method and row["steps"] == steps]
        last = max(row["updates"] for row in rows)
        found[seed] = 100 * float(np.mean([row[column] for row in rows if row["updates"] == last]))
    return found


def bias_cosine(record: str, method: str, updates: int, column: str = "bias_cosine") -> dict[int, float]:
    """Initial model → cosine of an estimator's mean update, or another column, with the true gradient."""
    found = {}
    for seed, text in files(record, "estimators/seed#.json"):
        rows = [r for r in json.loads(text)["rows"] if r["estimator"] == method and r["updates"] == updates]
        found[seed] = float(np.mean([row[column][0] for row in rows]))
    return found


def one_batch(record: str, method: str) -> dict[int, float]:
    """Initial model → mean cosine of one batch's update with the true gradient, in hundredths."""
    return {seed: 100 * cosine for seed, cosine in bias_cosine(record, method, 16, "cosine").items()}


def of_samples(record: str, arm: str, count: int) -> Numbers:
    """Accuracy of all samples in the first and last ``count`` steps, and of each seed in the last ones."""
    runs = [
        [row["sampled_accuracy"] for row in rows if "sampled_accuracy" in row]
        for _, rows in sorted(metrics(record, arm).items())
    ]
    last = [float(np.mean(run[-count:])) for run in runs]
    return float(np.mean([run[:count] for run in runs])), float(np.mean(last)), *last


def cost(record: str) -> Numbers:
    """Runs, core-hours and sampled tokens."""
    with ZipFile(ROOT / "docs" / "records" / f"{record}.zip") as archive:
        ends = [json.loads(archive.read(n))["final"] for n in archive.namelist() if n.endswith("/summary.json")]
    return len(ends), sum(end["seconds"] for end in ends) / 3600, sum(end["tokens"] for end in ends)


def above_start(record: str, decoding: str, *arms: str) -> int:
    """How many runs end above the initial model in accuracy, `sampled` or `greedy`, mean over benchmarks."""
    key = {"sampled": "per_problem", "greedy": "greedy"}[decoding]
    texts = dict(files(record, "start/seed#/evaluation/records.json"))
    starts = {
        seed: 100 * float(np.mean([np.mean(row[key]) for row in json.loads(text)["records"]]))
        for seed, text in texts.items()
    }
    return sum(end > starts[seed] for arm in arms for seed, end in final(record, arm, decoding).items())


def collapsed(record: str, *methods: str) -> Numbers:
    """For each method: how many runs at the two larger learning rates end below half of their first accuracy."""
    counts = []
    for method in methods:
        arms = [f"{method}+ahead={age}+learning_rate={rate}" for age in (4, 16, 48) for rate in ("0.0004", "0.0008")]
        runs = [rows for arm in arms for rows in metrics(record, arm).values()]
        counts.append(sum(rows[-1]["validation_accuracy"] < rows[0]["validation_accuracy"] / 2 for rows in runs))
    return counts


def ends_low(record: str) -> Numbers:
    """How many of 96 runs with a clip and 128 without end below half of their first accuracy, 16 steps old at 4e-4."""
    clipped = [f"{method}_clip" for method in ("token", "block", "sequence")]
    counts = []
    for methods in (clipped, ["none", "token", "block", "sequence"]):
        runs = [r for m in methods for r in metrics(record, f"{m}+ahead=16+learning_rate=0.0004").values()]
        counts.append(sum(r[-1]["validation_accuracy"] < r[0]["validation_accuracy"] / 2 for r in runs))
    return counts


def over_regimes(record: str, one: str, other: str) -> Numbers:
    """Mean difference of areas over the six regimes at the two larger learning rates, with half of its interval."""
    settings = [f"+ahead={age}+learning_rate={rate}" for age in (4, 16, 48) for rate in ("0.0004", "0.0008")]
    mean, low, _ = mean_t(list(np.mean([paired(area, record, one + s, other + s) for s in settings], axis=0)))
    return mean, mean - low


def by_start(of_seeds: list[float]) -> list[float]:
    """Means over seeds that share an initial model: of 32 seeds, two share each of 16."""
    return [float(x) for x in np.reshape(of_seeds, (-1, 16)).mean(0)] if len(of_seeds) == 32 else of_seeds


def against(record: str, settings: str, *pairs: tuple[str, str]) -> Numbers:
    """Mean differences of areas with half of their 95% intervals, of arms with the same settings."""
    numbers: list[float] = []
    for one, other in pairs:
        mean, low, _ = mean_t(by_start(paired(area, record, one + settings, other + settings)))
        numbers += [mean, mean - low]
    return numbers


def over_both(record: str, settings: str, *pairs: tuple[str, str]) -> Numbers:
    """As `against`, over the initial models of a record and of its replicate together."""
    numbers: list[float] = []
    for one, other in pairs:
        sets = [paired(area, r, one + settings, other + settings) for r in (record, f"{record}-replicate")]
        mean, low, _ = mean_t([x for values in sets for x in by_start(values)])
        numbers += [mean, mean - low]
    return numbers


def clips_differ(record: str) -> Numbers:
    """What a clip changes in the area of the block ratio minus the same of the token ratio, 48 steps old."""
    block, token = (paired(area, record, f"{ratio}_clip+ahead=48", f"{ratio}+ahead=48") for ratio in ("block", "token"))
    return half_width(mean_t([b - t for b, t in zip(block, token, strict=True)]))


def plus_minus(record: str, *pairs: tuple[str, str]) -> Numbers:
    """Mean and half of Student's 95% interval of the area of each pair of arms, over seeds."""
    return [x for one, other in pairs for x in half_width(mean_t(paired(area, record, one, other)))]


def half_width(mean_and_interval: Numbers) -> Numbers:
    """Mean and half of the interval."""
    mean, low, _ = mean_and_interval
    return mean, mean - low


def at_the_end(record: str, one: str, other: str) -> Numbers:
    """Difference of accuracies of final models, sampled and greedy, each with its interval."""
    return [number for decoding in ("sampled", "greedy") for number in tango(record, one, other, decoding)]


def gradient_norms(record: str, arm: str) -> Numbers:
    """Mean and maximum over all steps of all seeds."""
    norms = [row["gradient_norm"] for rows in metrics(record, arm).values() for row in rows if "gradient_norm" in row]
    return [float(np.mean(norms)), max(norms)]


AGAIN = "turns-replicate"
BITS = "sampler_bits=3+learning_rate=0.0004"
OLDEST = {ratio: f"{ratio}_clip+ahead=48" for ratio in ("token", "sequence")}
MPO16, TEPO16, DAPO16, DAPO1 = (
    f"{name}+updates_per_batch={n}" for name, n in (("mpo", 16), ("tepo", 16), ("dapo", 16), ("dapo", 1))
)
ROW = "| ".join(["{:.1f} [{:.1f}, {:.1f}] "] * 8)
UPDATES = {"1 update": "+updates_per_batch=1", "4 updates": "", "16 updates": "+updates_per_batch=16"}
NONE = tuple((method, "none") for method in ("token", "block", "sequence", "product"))
IN_ALL = [("token_clip+ahead=48", "token+ahead=48")] + [
    (f"{ratio}_clip+ahead=16{rate}", f"{ratio}+ahead=16{rate}")
    for ratio in ("token", "block", "sequence")
    for rate in ("", "+learning_rate=0.0004")
]
BLOCK_TOKEN = ("block_clip", "token_clip")
TWICE = "token_clip+ahead=16+learning_rate=0.0004"
CLIPPED = tuple((f"{ratio}_clip", ratio) for ratio in ("token", "block", "sequence"))
FOUR = "| ".join(["{:+.1f} ± {:.1f} "] * 4)
Line = tuple[str, Callable[[str], Numbers]]
NUMBERS: dict[tuple[str, str], list[Line]] = {
    ("docs/statistics.md", "controls"): [
        (
            "{:+.1f} points [{:.1f}, {:+.1f}], within",
            lambda r: mean_t(paired(area, r, "token_clip+sampling_seed=1", "token_clip")),
        ),
        ("is {:.1f} points [{:.1f}, {:.1f}] behind", lambda r: mean_t(paired(area, r, "token_clip", "poor_clip"))),
    ],
    ("docs/methods/tepo.md", "mask"): [
        *(
            (
                f"| {text} | {{:+.1f}} ± {{:.1f}} | {{:+.1f}} ± {{:.1f}} |",
                lambda r, one=one, other=other: plus_minus(
                    r, *((f"{one}+{at}", f"{other}+{at}") for at in ("ahead=48", "ahead=16+learning_rate=0.0004"))
                ),
            )
            for text, one, other in (
                ("masked − none", "tepo", "tepo_v1"),
                ("all tokens − none", "tepo_full_kl", "tepo_v1"),
                ("masked − all tokens", "tepo", "tepo_full_kl"),
            )
        )
    ],
    ("docs/phase.md", "mask"): [
        (
            "the masked term costs {:.1f} ± {:.1f} and {:.1f} ± {:.1f} points",
            lambda r: plus_minus(
                r, *((f"tepo_v1+{at}", f"tepo+{at}") for at in ("ahead=48", "ahead=16+learning_rate=0.0004"))
            ),
        )
    ],
    ("docs/withdrawn.md", HOUR): [
        (
            "norm there is {:.1f} on average and {:.0f} at most (DAPO's {:.1f} and {:.1f}; both are clipped at 1)",
            lambda r: [x for arm in (TEPO16, DAPO16) for x in gradient_norms(r, arm)],
        ),
        (
            "DAPO with one update instead of four is {:.1f} points [{:.1f}, {:+.1f}] (20 seeds",
            lambda r: tango(r, DAPO1, "dapo", "greedy"),
        ),
        ("is {:.1f} points [{:.1f}, {:.1f}] sampled and ", lambda r: tango(r, MPO16, DAPO16, "sampled")),
        ("and {:.1f} [{:.1f}, {:.1f}] greedy", lambda r: tango(r, MPO16, DAPO16, "greedy")),
        ("({:.1f} [{:.1f}, {:+.1f}])", lambda r: mean_t(paired(area, r, MPO16, DAPO16))),
        (
            "REINFORCE is {:.1f} points [{:.1f}, {:.1f}] after 4 training steps and {:+.1f} [{:+.1f}, {:+.1f}] after",
            lambda r: [x for n in (4, 12) for x in mean_t(paired(after_round, r, "sequence", "reinforce", n))],
        ),
    ],
    ("docs/length.md", "scale-long"): [
        (
            "The block ratio's deficit of {:.1f} ± {:.1f}, which the first six models decide",
            lambda r: half_width(mean_t(paired(one_batch, r, "token", "block"))),
        )
    ],
    ("docs/length.md", "scale-5m"): [
        (
            "take mean sampled accuracy from {:.1f}% to {:.1f}%",
            lambda r: (
                100 * np.mean([rows[0]["validation_accuracy"] for rows in metrics(r, "none").values()]),
                np.mean([*after_round(r, "token", 16, "before").values()]),
            ),
        ),
        (
            "at most {:.0f}% of the responses are correct with any ratio",
            lambda r: [
                max(max(after_round(r, m, 16).values()) for m in ("token", "none", "block", "sequence", "product"))
            ],
        ),
    ],
    ("docs/length.md", "scale-long-fresh"): [
        (
            "is {:.1f} ± {:.1f} here and not repeated",
            lambda r: half_width(mean_t(paired(one_batch, r, "token", "block"))),
        )
    ],
    ("docs/phase.md", "scale-fresh"): [
        (
            "a ratio is {:.1f} ± {:.1f} points behind the token ratio, block and sequence ratios are not shown to",
            lambda r: half_width(mean_t(paired(after_round, r, "token", "none", 16))),
        )
    ],
    ("docs/recipes.md", "recipes"): [
        (
            "At equal samples, with half the steps, it loses {:.1f} to {:.1f} points of AUC",
            lambda r: sorted(
                float(np.mean(paired(area_at_samples, r, base, dynamic)))
                for dynamic, base in (("dapo", "token_clip"), ("mpo_dynamic", "mpo"), ("tepo_dynamic", "tepo"))
            )[::2],
        ),
        (
            "its sampled accuracy is {:.1f} ± {:.1f} points behind",
            lambda r: half_width(mean_t(paired(final, r, "gspo_chosen", "gspo", "sampled"))),
        ),
        (
            "published range is {:.1f} ± {:.1f} points of\nAUC behind the chosen one, and TEPO's is ahead of it by "
            "{:.1f} ± {:.1f}",
            lambda r: plus_minus(r, ("dapo", "dapo_published"), ("tepo_published", "tepo")),
        ),
        (
            "(it is {:.1f} and {:.1f}, both decided)",
            lambda r: [
                mean_t(paired(final, r, a, b, "sampled"))[0] for a, b in (("grpo", "tepo"), ("dapo", "tepo_dynamic"))
            ],
        ),
        (
            "(it is not: +{:.1f} ± {:.1f})",
            lambda r: half_width(mean_t(paired(final, r, "mpo", "token_clip", "sampled"))),
        ),
    ],
    ("docs/recipes.md", "convergence"): [
        (
            "TEPO is behind GRPO by {:.1f} ± {:.1f} points of AUC and {:.1f} ± {:.1f} of sampled accuracy",
            lambda r: [
                *half_width(mean_t(paired(area, r, "grpo", "tepo"))),
                *half_width(mean_t(paired(final, r, "grpo", "tepo", "sampled"))),
            ],
        ),
        ("validation accuracy still rises by {:.1f} points [{:.1f}, {:.1f}]", lambda r: mean_t(late_rise(r, "grpo"))),
    ],
    ("docs/mismatch.md", "mismatch"): [
        (
            "masking by the geometric mean is {:.1f} ± {:.1f} ahead of no correction",
            lambda r: plus_minus(r, tuple(f"{m}+{BITS}" for m in ("geometric_masked", "none"))),
        ),
        (
            "{:.1f} ± {:.1f}, {:.1f} ± {:.1f}, {:.1f} ± {:.1f} and {:.1f} ± {:.1f} points against the trainer's own",
            lambda r: plus_minus(r, *(("none", f"none+sampler_bits={bits}") for bits in (8, 6, 4, 3))),
        ),
        (
            "the geometric mean is {:.1f} ± {:.1f} ahead of no correction",
            lambda r: against(r, "+sampler_bits=3+learning_rate=0.0004", ("geometric_masked", "none")),
        ),
    ],
    ("docs/turns.md", "turns"): [
        *(
            (
                f"| {one} − {other} | **{{:+.1f}} ± {{:.1f}}** | **{{:+.1f}} ± {{:.1f}}** | **{{:+.1f}} ± {{:.1f}}** |",
                lambda r, one=one, other=other: [
                    number
                    for age, records in ((16, (r, AGAIN)), (48, (r,)))
                    for record in records
                    for number in plus_minus(record, (f"{one}+ahead={age}", f"{other}+ahead={age}"))
                ],
            )
            for one in ("token", "turn", "sequence")
            for other in ("none", "token")
            if one != other
        ),
        *(
            (
                f"{one} − {other} {{:+.1f}} ± {{:.1f}} and {{:+.1f}} ± {{:.1f}}",
                lambda r, a=a, b=b: [
                    number for record in (r, AGAIN) for number in plus_minus(record, (f"{a}+ahead=0", f"{b}+ahead=0"))
                ],
            )
            for one, other, a, b in (
                ("GiGPO", "response", "gigpo", "response"),
                ("return-to-go", "response", "turn_return", "response"),
                ("GiGPO", "return-to-go", "gigpo", "turn_return"),
            )
        ),
    ],
    ("docs/turns.md", AGAIN): [
        (
            "at 4e-4 it ends {:.1f} points lower in sampled and {:.1f} in greedy accuracy",
            lambda r: [
                mean_t(paired(final, r, OLDEST["token"], f"{OLDEST['token']}+learning_rate=0.0004", decoding))[0]
                for decoding in ("sampled", "greedy")
            ],
        ),
        (
            "the sequence ratio at 4e-4 ends {:.1f} ± {:.1f} points ahead in sampled accuracy and {:.1f} ± {:.1f} in",
            lambda r: [
                x
                for decoding in ("sampled", "greedy")
                for x in half_width(
                    mean_t(paired(final, r, f"{OLDEST['sequence']}+learning_rate=0.0004", OLDEST["token"], decoding))
                )
            ],
        ),
        *(
            (
                f"| {one} clip − token clip | {{:+.1f}} ± {{:.1f}} | **{{:+.1f}} ± {{:.1f}}** | {{:+.1f}} ± {{:.1f}} |",
                lambda r, one=one: plus_minus(
                    r,
                    *(
                        (f"{one}_clip+{settings}", f"token_clip+{settings}")
                        for settings in ("ahead=16", "ahead=16+learning_rate=0.0004", "ahead=48")
                    ),
                ),
            )
            for one in ("turn", "sequence")
        ),
        (
            "cost {:.1f} ± {:.1f} and {:.1f} ± {:.1f} points against fresh ones",
            lambda r: plus_minus(r, *(("none+ahead=0", f"none+ahead={age}") for age in (16, 48))),
        ),
        (
            "shown with rollouts 48 steps old (sampled {:+.1f} [{:+.1f}, {:+.1f}], greedy {:+.1f} [{:+.1f}, {:+.1f}])",
            lambda r: at_the_end(r, *(f"{name}_clip+ahead=48+learning_rate=0.0004" for name in ("sequence", "token"))),
        ),
        (
            "not with 16 (sampled {:+.1f} [{:+.1f}, {:+.1f}], greedy {:+.1f} [{:+.1f}, {:+.1f}])",
            lambda r: at_the_end(r, "sequence_clip+ahead=16+learning_rate=0.0004", "token_clip+ahead=16"),
        ),
    ],
    ("docs/phase.md", "phase-old-rates"): [
        (
            "costs {:.1f} ± {:.1f} points with rollouts 64 steps old and {:.1f} ± {:.1f} with 128 (decided), and with "
            "128 steps the clipped token ratio is {:.1f} ± {:.1f} behind no ratio",
            lambda r: plus_minus(
                r,
                *(
                    (f"{one}+ahead={age}+learning_rate=0.0001", f"{other}+ahead={age}+learning_rate=0.0001")
                    for one, other, age in (
                        ("token", "token_clip", 64),
                        ("token", "token_clip", 128),
                        ("none", "token_clip", 128),
                    )
                ),
            ),
        ),
        (
            "by {:.1f} ± {:.1f} with rollouts 64 steps old at 4e-4 (decided), and by {:.1f} ± {:.1f} at",
            lambda r: plus_minus(
                r,
                *(
                    (f"token_clip+ahead=64+learning_rate={rate}", f"none+ahead=64+learning_rate={rate}")
                    for rate in ("0.0004", "0.0008")
                ),
            ),
        ),
        (
            "block, {:.1f} and {:.1f} ahead of token | no: it costs the token ratio {:.1f} and {:.1f} points",
            lambda r: [
                float(np.mean(paired(area, r, *(f"{m}+ahead={age}+learning_rate=0.0001" for m in pair))))
                for pair in (("block_clip", "token_clip"), ("token", "token_clip"))
                for age in (64, 128)
            ],
        ),
        (
            "{:+.1f} ± {:.1f} and {:.1f} ± {:.1f} at 128 steps with 4e-4 and 8e-4",
            lambda r: plus_minus(
                r,
                *(
                    tuple(f"{m}+ahead=128+learning_rate={rate}" for m in ("token", "none"))
                    for rate in ("0.0004", "0.0008")
                ),
            ),
        ),
        (
            "Without a clip {} of 64 runs collapse at 8e-4 and {} of 64 at 4e-4",
            lambda r: [ends_below_half(r, rate, "none", "token", "block", "sequence") for rate in ("0.0008", "0.0004")],
        ),
        (
            "with a clip {} and {} of 32 do",
            lambda r: [ends_below_half(r, rate, "token_clip", "block_clip") for rate in ("0.0008", "0.0004")],
        ),
    ],
    ("docs/phase.md", "phase"): [
        (
            "gains {:.1f} ± {:.1f} points with the token ratio, {:.1f} ± {:.1f} with the block ratio and "
            "{:.1f} ± {:.1f} with the sequence ratio",
            lambda r: [x for ratio in ("token", "block", "sequence") for x in over_regimes(r, f"{ratio}_clip", ratio)],
        ),
        (
            "{} collapse with the token ratio and {} with its clip, {} and {} with the block ratio, {} and {} with the",
            lambda r: collapsed(r, "token", "token_clip", "block", "block_clip", "sequence", "sequence_clip"),
        ),
        *(
            (f"| {FOUR}|", lambda r, settings=settings: against(r, settings, *NONE))
            for settings in ("+ahead=4", "+ahead=16", "+ahead=48", "+ahead=48+learning_rate=0.0001")
        ),
        (
            "loses {:.1f} points where rate and age are largest",
            lambda r: [-against(r, "+ahead=48+learning_rate=0.0008", ("product", "none"))[0]],
        ),
        (
            "(the sequence ratio is {:.1f} ± {:.1f} behind it, decided on the map; the block ratio {:.1f} ± {:.1f}",
            lambda r: against(
                r,
                "+ahead=4+learning_rate=0.0004",
                *((("token_clip", f"{ratio}_clip")) for ratio in ("sequence", "block")),
            ),
        ),
        (
            "−{:.1f} ± {:.1f} points and that of the block ratio by {:+.1f} ± {:.1f} (difference {:.1f} ± {:.1f}, not",
            lambda r: [*against(r, "+ahead=48", ("token", "token_clip"), ("block_clip", "block")), *clips_differ(r)],
        ),
    ],
    ("docs/phase.md", "night"): [
        (
            "in final sampled accuracy {:+.1f} ± {:.1f} and {:.1f} ± {:.1f} in the two sets",
            lambda r: [
                x
                for record in (r, f"{r}-replicate")
                for x in half_width(mean_t(by_start(paired(final, record, "none+ahead=16", TWICE, "sampled"))))
            ],
        ),
        (
            "With rollouts 16 steps old at 4e-4 it gains {:.1f} ± {:.1f} points with the token ratio, {:.1f} ± {:.1f} "
            "with the block ratio and {:.1f} ± {:.1f} with",
            lambda r: over_both(r, "+ahead=16+learning_rate=0.0004", *CLIPPED),
        ),
        (
            "{} of 192 clipped runs end below half of their initial accuracy; {} of 256 runs without a clip do",
            lambda r: [sum(x) for x in zip(*map(ends_low, (r, f"{r}-replicate")), strict=True)],
        ),
        (
            "without ratio or clip at 2e-4 is {:.1f} ± {:.1f} points ahead of the clipped token ratio at 4e-4",
            lambda r: over_both(r, "", ("none+ahead=16", "token_clip+ahead=16+learning_rate=0.0004")),
        ),
        (
            "The token ratio *without* a clip is {:.1f} ± {:.1f} ahead of the clipped block ratio",
            lambda r: over_both(r, "+ahead=48", ("token", "block_clip")),
        ),
        (
            "The token ratio gains {:.1f} ± {:.1f} points over no ratio at 48 steps",
            lambda r: over_both(r, "+ahead=48", ("token", "none")),
        ),
        (
            "gains {:.1f} ± {:.1f}, the block ratio {:.1f} ± {:.1f} and the sequence ratio {:.1f} ± {:.1f}: the same",
            lambda r: over_both(r, "+ahead=16", *((ratio, "none") for ratio in ("token", "block", "sequence"))),
        ),
        (
            "is {:.1f} ± {:.1f} at 48 steps and 2e-4, {:.1f} ± {:.1f} at 16 steps and 2e-4",
            lambda r: [x for a in (48, 16) for x in over_both(r, f"+ahead={a}", BLOCK_TOKEN)],
        ),
        (
            "final greedy accuracy is {:.1f} and {:.1f} points lower in the two sets",
            lambda r: [
                -tango(n, "block_clip+ahead=16", "token_clip+ahead=16", "greedy")[0] for n in (r, f"{r}-replicate")
            ],
        ),
        (
            "The clipped sequence ratio is {:.1f} ± {:.1f} behind the clipped token ratio at 16 steps",
            lambda r: over_both(r, "+ahead=16", ("token_clip", "sequence_clip")),
        ),
        (
            "The clipped token ratio is {:.1f} ± {:.1f} points behind the unclipped one",
            lambda r: over_both(r, "+ahead=48", ("token", "token_clip")),
        ),
        (
            "{:.1f} and {:.1f} points behind in sampled accuracy in the two sets. In greedy decoding it is ahead, by "
            "{:.1f} [{:.1f}, {:.1f}] and {:.1f} [{:.1f}, {:.1f}]",
            lambda r: [
                *(-tango(n, "token_clip+ahead=48", "token+ahead=48", "sampled")[0] for n in (r, f"{r}-replicate")),
                *(
                    x
                    for n in (r, f"{r}-replicate")
                    for x in tango(n, "token_clip+ahead=48", "token+ahead=48", "greedy")
                ),
            ],
        ),
        (
            "the clip gains {:.1f} to {:.1f} points of final greedy accuracy",
            lambda r: [
                f(tango(n, one, other, "greedy")[0] for n in (r, f"{r}-replicate") for one, other in IN_ALL)
                for f in (min, max)
            ],
        ),
    ],
    ("docs/findings.md", "laptop"): [
        (
            "block ratio, clip - token ratio, clip | {:+.1f} [{:+.1f}, {:+.1f}] | +4.2",
            lambda r: mean_t(paired(area, r, "block_clip+ahead=48", "token_clip+ahead=48")),
        )
    ],
    ("docs/withdrawn.md", "earlier/newer"): [
        (
            "the cosine is {:.2f} after 4 updates and {:.2f} after 16",
            lambda r: [float(np.mean([*bias_cosine(r, "gspo", n).values()])) for n in (4, 16)],
        )
    ],
    ("docs/withdrawn.md", "newer"): [
        (
            "does point away ({:.2f} and {:.2f}, ",
            lambda r: [float(np.mean([*bias_cosine(r, "gspo", n).values()])) for n in (4, 16)],
        )
    ],
    ("docs/newer.md", "newer"): [
        *(
            (text, lambda r, method=method: [x for n in (4, 16) for x in mean_t([*bias_cosine(r, method, n).values()])])
            for method, text in {
                "gspo": "{:.2f} [{:.2f}, {:.2f}] after 4 updates and {:.2f} [{:.2f}, {:.2f}] after 16",
                "luspo": "{:.2f} [{:.2f}, {:.2f}] and {:.2f} [{:.2f}, {:.2f}]: the same ratio",
            }.items()
        ),
        ("after 16 updates {:.2f} [{:.2f}, {:.2f}]", lambda r: mean_t([*bias_cosine(r, "gmpo", 16).values()])),
        (
            "it is {:.2f} and {:.2f}, although",
            lambda r: [float(np.mean([*bias_cosine(r, "token", n).values()])) for n in (4, 16)],
        ),
        (
            "is {:.1f} points behind the token ratio [{:.1f}, {:.1f}]",
            lambda r: [
                sign * x for sign, x in zip((-1, 1, 1), mean_t(paired(after_round, r, "gspo", "token", 4)), strict=True)
            ],
        ),
        (
            "(KL [{:+.1f}, {:+.1f}], TV [{:+.1f}, {:+.1f}]) and VESPO {:.1f} [{:+.1f}, {:+.1f}]",
            lambda r: [
                x
                for method, first in (("dppo_kl", 1), ("dppo_tv", 1), ("vespo", 0))
                for x in mean_t(paired(after_round, r, method, "token", 4))[first:]
            ],
        ),
    ],
    ("docs/newer.md", "earlier/laptop"): [
        (
            "was {:.2f} and {:.2f} on other",
            lambda r: [float(np.mean([*bias_cosine(r, "sequence_unclipped", n).values()])) for n in (4, 16)],
        )
    ],
    ("docs/newer.md", "earlier/newer"): [
        ("was behind, too ({:.1f} [{:.1f}, {:.1f}])", lambda r: mean_t(paired(after_round, r, "gspo", "token", 4)))
    ],
    ("docs/hour.md", HOUR): [
        ("| GRPO − DAPO \\* | {:+.1f} [{:+.1f}, {:+.1f}] |", lambda r: tango(r, "grpo", "dapo", "sampled")),
        *(
            (
                f"| {method.upper()}, {words} | {{}} | {ROW}|",
                lambda r, arm=method + key, decoding=decoding: [
                    len(scores(r, arm, decoding)),
                    *wilson(r, arm, decoding),
                ],
            )
            for method in ("grpo", "dapo", "tepo", "mpo")
            for words, key in UPDATES.items()
            for decoding in ("sampled", "greedy")
        ),
    ],
    ("docs/pretrained.md", "smollm2"): [
        ("{} runs of 40 steps, {:.1f} core-hours, {:,} sampled tokens", cost),
        ("| GRPO − TEPO | {:+.1f} [{:+.1f}, {:+.1f}] |", lambda r: tango(r, "grpo", "tepo", "sampled")),
        *(
            (
                # Steps in which all groups were dropped count.
                f"| {arm} | {{:.0%}} | {{:.0%}} | {', '.join(['{:.0%}'] * (2 if '+' in arm else 3))} |",
                lambda r, arm=arm: of_samples(r, arm, 10),
            )
            for method in ("grpo", "tepo", "mpo")
            for arm in (method, f"{method}+updates_per_batch=1")
        ),
    ],
    ("docs/pretrained.md", "smollm2-ratios"): [
        ("{} runs of 12 steps, {:.1f} core-hours, {:,} sampled tokens", cost),
        (
            "| token ratio − no ratio | {:+.1f} ± {:.1f} |",
            lambda r: half_width(mean_t(paired(area, r, "token", "none"))),
        ),
        (
            "{} of 9 runs without a clip end above the initial model, and {} of 9 of the presets; in greedy accuracy "
            "{} of 9 and {} of 9",
            lambda r: [
                above_start(r, decoding, *arms)
                for decoding in ("sampled", "greedy")
                for arms in (("none", "token", "sequence"), ("grpo", "tepo", "mpo"))
            ],
        ),
    ],
    ("docs/pretrained.md", "smollm2-code"): [("{} runs of 20 steps, {:.1f} core-hours, {:,} sampled tokens", cost)],
}


def plain(text: str) -> str:
    """A page or text with one kind of minus and of space, and nothing in bold."""
    return " ".join(text.replace("−", "-").replace("**", "").split())


@pytest.mark.parametrize(
    ("page", "record", "text", "computed"),
    [
        pytest.param(*place, *line, id=f"{place[0]}: {line[0][:40]}")
        for place, lines in NUMBERS.items()
        for line in lines
    ],
)
def test_a_printed_number_follows_from_the_record(
    page: str, record: str, text: str, computed: Callable[[str], Numbers]
) -> None:
    printed = plain(text.format(*computed(record)))
    assert plain((ROOT / page).read_text()).count(printed) == 1, printed


def test_the_computation_does_not_use_policygrain() -> None:
    text = Path(__file__).read_text()
    assert not re.search(r"^\s*(from|import) (policygrain|\.)", text, flags=re.M)
