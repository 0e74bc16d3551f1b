"""Records of estimators and rounds as tables for the terminal."""

from __future__ import annotations

from scipy import stats

from ..results.measurements import EstimatorsRecord, RoundsRecord, round_table
from ..text import columns


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
    for steps, stage in round_table([record]).groupby("steps"):
        rewards = 100 * stage.pivot_table("reward", "method", "updates", sort=False)  # means over pools
        last = stage[stage["updates"] == stage["updates"].max()]
        ends = 100 * last.pivot(index="pool", columns="method", values="reward")
        means = last.groupby("method")[["clip_fraction", "gradient_norm"]].mean()
        rows = []
        for name, shown in rewards.iterrows():
            apart = ends[name] - ends[record.reference]
            difference = f"{apart.mean():+.1f}"
            if len(apart) > 1:
                half = stats.t.ppf(0.975, len(apart) - 1) * stats.sem(apart)
                difference += f" [{apart.mean() - half:+.1f}, {apart.mean() + half:+.1f}]"
            difference = "reference" if name == record.reference else difference
            clipped, norm = means.loc[name]
            rows.append([str(name), *(f"{r:.1f}" for r in shown), difference, f"{clipped:.2%}", f"{norm:.2f}"])
        header = ["method", *(f"after {n}" for n in rewards), f"difference after {rewards.columns[-1]}"]
        lines += [f"{steps} steps: {100 * record.before[str(steps)]:.1f}% before; mean over {len(ends)} pools, in %"]
        lines += columns(rows, [*header, "clipped", "norm"], "lr")
    return [
        *lines,
        f"{record.responses_per_update} responses per update, {record.validation_responses} validation responses; "
        f"intervals over pools of one policy; {record.seconds:.0f} s",
    ]
