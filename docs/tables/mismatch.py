"""Corrections of training–inference mismatch, from the record of studies/mismatch.yaml."""

from __future__ import annotations

from policygrain.study import load_study

from .common import ROOT, areas, arm_of, block, compare, compared, difference, steps, table

RECORD = "mismatch"
STUDY = load_study(ROOT / "studies/mismatch.yaml")
EXPERIMENT = STUDY.experiments["mismatch"]
RATES, BITS = EXPERIMENT.vary["learning_rate"], EXPERIMENT.vary["sampler_bits"]


def labels(methods: list[str]) -> list[str]:
    """The names of methods in tables."""
    return [str(STUDY.methods[name].label) for name in methods]


@block("mismatch-corrections")
def corrections() -> str:
    """Cost of mismatch, and each correction minus none, by learning rate and bits of the sampler's weights."""
    methods = [name for name in EXPERIMENT.methods if name != EXPERIMENT.reference]
    rows = []
    for regime in ({"learning_rate": rate, "sampler_bits": bits} for rate in RATES for bits in BITS):
        rate, bits = regime.values()
        plain, without_mismatch = areas(RECORD, "none", **regime), areas(RECORD, "none", learning_rate=rate)
        differences = [compare(RECORD, name, "none", **regime) for name in methods]
        cells = [f"{rate:g}", f"{bits}", f"{plain.mean():.0f}%"]
        rows.append((cells, [difference(plain, without_mismatch), *differences]))
    headers = ["learning rate", "bits", "no correction: accuracy", "minus no mismatch", *labels(methods)]
    return compared(headers, rows)


@block("mismatch-dropped")
def dropped() -> str:
    """Mismatch by bits, and the share of tokens that each mask drops: means at the smaller rate."""
    masks = [name for name in EXPERIMENT.methods if name.endswith("_masked")]

    def mean(method: str, bits: object, metric: str) -> float:
        arm = arm_of(RECORD, method, learning_rate=min(RATES), sampler_bits=bits)
        frame = steps(RECORD)
        return float(frame[frame["arm"] == arm].groupby("seed")[metric].mean().mean())

    rows = [
        [
            f"{bits}",
            f"{mean('none', bits, 'mismatch_mean'):.2g}",
            *(f"{mean(name, bits, 'correction_dropped_share'):.0%}" for name in masks),
        ]
        for bits in BITS
    ]
    return table(["bits", "mean ∣log π_old − log μ∣", *labels(masks)], rows)
