"""All cases with all estimators: the record that the figure and the documentation read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

import torch
from torch import Tensor

from ..progress import Progress
from ..results.measurements import CaseEstimator, CaseRecord, CasesRecord, Measured
from ..text import columns
from . import measure, policies
from .definitions import BASELINE, BATCH, CASES, NO_CLIP, RATIOS, STEP, Case, Estimator, estimators
from .measure import DIGITS, interval

# Expected reward by update and seed. [UPDATES + 1, seeds].
Curves = Mapping[tuple[Case, Estimator], Tensor]


def run_cases(seeds: int) -> CasesRecord:
    """Measure every estimator in every case; learning curves are of ``seeds`` seeds."""
    trainings = [(case, e) for case in CASES for e in estimators()]
    trainings += [(case.at(dose), e) for case in CASES for dose in case.doses for e in estimators([NO_CLIP])]
    progress = Progress(dict.fromkeys(trainings), "cases", len(set(trainings)))
    curves = {(case, e): measure.train(e.method, case, seeds) for case, e in progress}
    records = [_record(case, [_estimator(case, e, curves) for e in estimators()]) for case in CASES]
    return CasesRecord(seeds=seeds, batch=BATCH, step_length=STEP, baseline=BASELINE, cases=records)


def text(record: CasesRecord) -> str:
    """A table per case for the terminal."""
    header = ["ratio", "clip", "push on x1", "cosine", "bias", "cosine of a batch", f"reward − {record.baseline}"]
    parts = []
    for case in record.cases:
        rows = [
            [
                e.name,
                "–" if e.clip is None else f"{e.clip[0]:g}/{e.clip[1]:g}",
                f"{e.push:+.3f}",
                f"{e.cosine:+.2f}",
                f"{e.bias:.2f}",
                f"{e.batch_cosine[0]:+.2f}",
                f"{e.difference[0]:+.4f} [{e.difference[1]:+.4f}, {e.difference[2]:+.4f}]",
            ]
            for e in case.estimators
        ]
        title = f"{case.title}. {case.prediction}\nExact push on x1: {case.exact_push:+.3f}"
        parts.append("\n".join([title, *columns(rows, header, "llr")]))
    footer = (
        f"Batches of {record.batch} responses; reward: expected reward averaged over training, {record.seeds} seeds, "
        "paired, 95% intervals."
    )
    return "\n\n".join([*parts, footer])


def _estimator(case: Case, estimator: Estimator, curves: Curves) -> CaseEstimator:
    exact = measure.exact_gradient(case)
    expected = measure.expected_update(estimator.method, case)
    clip, doses = estimator.clip.settings, () if estimator.is_clipped else case.doses
    return CaseEstimator(
        name=estimator.name,
        ratio=estimator.ratio.data(),
        clip=(clip["low"], clip["high"]) if estimator.is_clipped else None,
        cosine=round(float(torch.cosine_similarity(expected, exact, dim=0)), DIGITS),
        push=round(float(expected[policies.X1]), DIGITS),
        bias=round(float((expected - exact).norm() / exact.norm()), DIGITS),
        batch_cosine=interval(measure.batch_cosines(estimator.method, case)),
        difference=_difference(case, estimator, curves),
        doses=[_difference(case.at(dose), estimator, curves) for dose in doses],
    )


def _difference(case: Case, estimator: Estimator, curves: Curves) -> Measured:
    """Expected reward, averaged over training, minus that of the baseline with the same clip."""
    baseline = replace(estimator, name=BASELINE, ratio=RATIOS[BASELINE])
    return interval((curves[case, estimator] - curves[case, baseline]).mean(0))


def _record(case: Case, estimators: list[CaseEstimator]) -> CaseRecord:
    described = ("name", "title", "prediction", "order")
    return CaseRecord(
        **{key: getattr(case, key) for key in described},
        settings={k: v for k, v in asdict(case).items() if k not in (*described, "dose", "doses")},
        exact_push=round(float(measure.exact_gradient(case)[policies.X1]), DIGITS),
        dose=case.dose,
        doses=list(case.doses),
        estimators=estimators,
    )
