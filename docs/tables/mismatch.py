"""Corrections of training–inference mismatch, from the record of studies/mismatch.yaml."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from policygrain.study import load_study

from .common import ROOT, table
from .phase import Difference, areas, corrected, difference, runs

RECORD, EXPERIMENT = "mismatch", "mismatch"


def corrections() -> str:
    """Cost of mismatch, and each correction minus none, by learning rate and bits of the sampler's weights."""
    study = load_study(ROOT / "studies/mismatch.yaml")
    experiment = study.experiments[EXPERIMENT]
    methods = [name for name in experiment.methods if name != experiment.reference]
    labels = [str(study.methods[name].label) for name in methods]
    regimes = [(rate, bits) for rate in experiment.vary["learning_rate"] for bits in experiment.vary["sampler_bits"]]
    found: list[list[Difference]] = []
    for rate, bits in regimes:
        plain = areas("none", 0, rate, RECORD, bits)
        compared = [difference(areas(name, 0, rate, RECORD, bits), plain) for name in methods]
        found.append([difference(plain, areas("none", 0, rate, RECORD)), *compared])
    rows = [
        [f"{rate:g}", f"{bits}", f"{np.mean(list(areas('none', 0, rate, RECORD, bits).values())):.0f}%", *shown]
        for (rate, bits), shown in zip(regimes, corrected(found), strict=True)
    ]
    headers = ["learning rate", "bits", "no correction: accuracy", "minus no mismatch", *labels]
    return table(headers, rows)


def dropped() -> str:
    """Mismatch by bits, and the share of tokens that each mask drops: means at the smaller rate."""
    study = load_study(ROOT / "studies/mismatch.yaml")
    experiment = study.experiments[EXPERIMENT]
    masks = [name for name in experiment.methods if name.endswith("_masked")]
    rate, rows = min(experiment.vary["learning_rate"]), []
    for bits in experiment.vary["sampler_bits"]:
        chosen = [run for run in runs(RECORD) if (run.rate, run.bits) == (rate, bits)]
        nats = np.mean([np.nanmean(run.metrics["mismatch_mean"]) for run in chosen if run.method == "none"])
        shares = [
            np.mean([np.nanmean(run.metrics["correction_dropped_share"]) for run in chosen if run.method == name])
            for name in masks
        ]
        rows.append([f"{bits}", f"{nats:.2g}", *(f"{share:.0%}" for share in shares)])
    return table(["bits", "mean ∣log π_old − log μ∣", *(str(study.methods[name].label) for name in masks)], rows)


BLOCKS: dict[str, Callable[[], str]] = {"mismatch-corrections": corrections, "mismatch-dropped": dropped}
