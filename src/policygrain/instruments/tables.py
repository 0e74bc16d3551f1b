"""Records of estimators and rounds as tables for the terminal."""

from __future__ import annotations

from statistics import mean

from ..results.measurements import EstimatorsRecord, RoundsRecord
from ..text import columns
from .rounds import differences


def estimators(record: EstimatorsRecord) -> list[str]:
    """The record as lines of a table: values with the half-width of their 95% interval."""

    def shown(value: tuple[float, float, float], digits: int = 3) -> str:
        return f"{value[0]:.{digits}f} ±{(value[2] - value[1]) / 2:.{digits}f}"

    header = ["steps", "updates", "estimator", "bias cosine", "length", "SNR", "cosine", "minus reference"]
    header += ["Adam cosine", "entropy", "norm", "clipped", "ratio variance", "samples", "penalty"]
    rows = [
        [
            f"{row.steps}",
            f"{row.updates}",
            row.estimator,
            shown(row.bias_cosine, 2),
            shown(row.length, 2),
            shown(row.snr, 4),
            shown(row.cosine),
            "reference" if row.estimator == record.reference else shown(row.cosine_difference),
            shown(row.adam_cosine),
            shown(row.entropy_direction),
            shown(row.norm, 2),
            f"{row.clip_fraction:.2%}",
            f"{row.ratio_variance:.3g}",
            f"{row.effective_sample_share:.0%}",
            f"{row.penalty_share:.0%}",
        ]
        for row in record.rows
    ]
    accuracies = ", ".join(f"{where} {accuracy:.1%}" for where, accuracy in record.accuracy.items())
    sizes = f"{record.batches} batches of {record.responses_per_batch} responses"
    return [
        *columns(rows, header, "rrlr"),
        f"accuracy at steps/updates: {accuracies}; {sizes}, true gradient of {record.true_responses}; "
        f"± 95% within this policy; {record.seconds:.0f} s",
    ]


def rounds(record: RoundsRecord) -> list[str]:
    """The record as lines of a table: rewards, and the mean difference to the reference over pools and its interval."""
    lines = []
    for steps, before in record.before.items():
        stage = [row for row in record.rows if row.steps == int(steps)]
        last = max((row.updates for row in stage), default=0)
        rows = []
        for name, compared in differences(record, int(steps)).items():
            ends = [row for row in stage if row.method == name and row.updates == last]
            rewards = [f"{100 * value:.1f}" for value in compared.rewards.values()]
            difference = "reference" if name == record.reference else f"{100 * compared.difference:+.1f}"
            if compared.interval is not None and name != record.reference:
                difference += f" [{100 * compared.interval[0]:+.1f}, {100 * compared.interval[1]:+.1f}]"
            clipped, norm = (mean(getattr(row, key) for row in ends) for key in ("clip_fraction", "gradient_norm"))
            rows.append([name, *rewards, difference, f"{clipped:.2%}", f"{norm:.2f}"])
        updates = sorted({row.updates for row in stage})
        header = ["method", *(f"after {n}" for n in updates), f"difference after {last}", "clipped", "norm"]
        pools = len({row.pool for row in stage})
        lines += [f"{steps} steps: {100 * before:.1f}% before; mean over {pools} pools, in %"]
        lines += columns(rows, header, "lr")
    return [
        *lines,
        f"{record.responses_per_update} responses per update, {record.validation_responses} validation responses; "
        f"intervals over pools of one policy; {record.seconds:.0f} s",
    ]
