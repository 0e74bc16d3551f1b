"""Tables of measurements in benchmarks/*.json."""

from __future__ import annotations

import statistics

from .common import block, read, spread, table


@block("training-step")
def training_step() -> str:
    """TRL's time per step over PolicyGrain's."""
    found = read("training_step")
    lengths = {
        "natural": "natural: responses end with an end-of-sequence token",
        "fixed": "fixed: `max_tokens` for all",
    }
    rows = []
    for name, text in lengths.items():
        scenario = found["scenarios"][name]
        rows.append([text, *spread(scenario["ratio_of_seconds_per_step"]), str(len(scenario["rounds"]))])
    return table(["response lengths", "TRL's seconds per step / PolicyGrain's", "range", "rounds"], rows)


@block("pretrained-step")
def pretrained_step() -> str:
    """A step of a pretrained model beside TRL's, and the share of the processor's peak."""
    found = read("pretrained_step")
    scenario = found["scenarios"]["pretrained"]
    rows = []
    for side, name in (("policygrain", "PolicyGrain"), ("trl", "TRL")):
        seconds = [row[side]["seconds_per_step"] for row in scenario["rounds"]]
        tokens = statistics.mean(row[side]["tokens_per_step"] for row in scenario["rounds"])
        ends = f"{min(seconds):.1f} to {max(seconds):.1f}"
        rows.append([name, f"{statistics.median(seconds):.1f}", ends, f"{tokens:,.0f}"])
    ratio, share = scenario["ratio_of_seconds_per_step"], scenario["share_of_peak"]
    phases = {"generate": "sampling", "log_probs": "old log-probabilities", "update": "updates"}
    parts = ", ".join(f"{share[key]:.0%} while {text}" for key, text in phases.items())
    return table(["", "seconds per step", "range", "sampled tokens per step"], rows) + (
        f"\n\nTRL's seconds over PolicyGrain's: {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}), "
        f"{len(scenario['rounds'])} rounds on one thread of {found['hardware']}, "
        f"{share['dtype'].removeprefix('torch.')} passes. PolicyGrain's share of the peak of that thread "
        f"({share['product_gflops']:,.0f} GFLOP/s in a large product of matrices): {share['step']:.0%} ({parts})."
    )


@block("engines")
def engines() -> str:
    """Rollouts of the pretrained model by each engine."""
    found = read("engines")
    rows = [
        [name, *spread(own["seconds"]), f"{own['tokens_per_second']:,.0f}", f"{own['start']:.0f}", f"{own['run']:,.0f}"]
        for name, own in found["engines"].items()
    ]
    header = ["engine, precision", "seconds per batch", "range", "tokens/s", "start (s)", "100 batches with start (s)"]
    training = found["training"]
    each = [
        f"{own['seconds_per_1000_tokens']:.1f} s with {name}, {own['generate']:.1f} of them sampling"
        for name, own in training.items()
        if name != "steps"
    ]
    return table(header, rows) + (
        f"\n\n{found['work']} of {found['hardware']}. In the first {training['steps']} steps of a run of the study, "
        f"side by side, per 1,000 sampled tokens: {'; '.join(each)}."
    )


@block("grading")
def grading() -> str:
    """Answers graded per second, ordinary ones and with some that reach the time limit."""
    found = read("grading")
    rounds = found["ordinary"]["rounds"]
    rates = [turn["policygrain"]["answers_per_s"] for turn in rounds]
    ratios = [turn["ratio"] for turn in rounds]
    hostile = found["hostile"]
    header = ["answers", "answers per second", "range", "speed over a serial loop of math-verify"]
    ordinary = [
        "ordinary",
        f"{statistics.median(rates):,.0f}",
        f"{min(rates):,.0f} to {max(rates):,.0f} over {len(rounds)} rounds",
        f"{statistics.median(ratios):.1f}",
    ]
    slow = ["1% never end by themselves", f"{hostile['policygrain']['answers_per_s']:,.0f}", "one round"]
    return table(header, [ordinary, [*slow, f"{hostile['ratio']:.1f}"]]) + (
        f"\n\n{found['workers']} workers on {found['hardware']}; grader {found['grader']}."
    )


@block("objective")
def objective() -> str:
    """Time of the objective, as an upper bound of its share of a training step."""
    found = read("objective_cost")
    seconds, shares = found["objective"]["seconds"], found["objective"]["share_at_most"]
    rows = [[f"`{name}`", f"{seconds[name]['median'] * 1e3:.2f} ms", f"{shares[name]:.4%}"] for name in seconds]
    head, shape = found["lm_head"], found["shape"]
    return table(["preset", "objective, metrics included", "share of a step, at most"], rows) + (
        f"\n\nThe output layer alone (hidden states to log-probabilities, and its gradient) takes "
        f"{head['seconds']['median']:.0f} s for the same {shape['responses'] * shape['tokens']:,} tokens, "
        f"scaled up from {len(head['seconds_per_chunk'])} chunks of {head['chunk_tokens']} tokens."
    )


@block("programs")
def programs() -> str:
    """Programs graded per second, and the plain interpreter beside them."""
    found = read("programs")
    rows = [
        [name, f"{row['median']:.0f}", f"{row['min']:.0f} to {row['max']:.0f}"]
        for name, row in found["per_second"].items()
    ]
    return table(["", "programs a second", "range"], rows) + (
        f"\n\n{found['workers']} workers on {found['hardware']}, by {found['isolation']}; the plain interpreter keeps "
        "nothing apart."
    )


@block("trivial-programs")
def trivial_programs() -> str:
    """The problems of the coding sets that a program of one trivial line solves."""
    found = read("trivial_programs")
    sets = found["sets"]
    lines = list(next(iter(sets.values()))["passing"])
    passed = [line for line in lines if any(own["passing"][line] for own in sets.values())]
    rows = []
    for line in passed:
        ids = [", ".join(i.rpartition("-")[2] for i in own["passing"][line]) for own in sets.values()]
        counts = [len(own["passing"][line]) for own in sets.values()]
        rows.append([f"`{line}`", *(f"{n} (task {i})" if n else "0" for n, i in zip(counts, ids, strict=True))])
    rest = ", ".join(f"`{line}`" for line in lines if line not in passed)
    header = ["the function is only", *(f"{name}, {own['problems']} problems" for name, own in sets.items())]
    return f"{table(header, rows)}\n\nEach of these {len(lines) - len(passed)} passes none: {rest}."


@block("block-ratio")
def block_ratio() -> str:
    """Time of block ratios over that of the token ratio."""
    seconds = read("objective_cost")["block"]["seconds"]
    whole, stage = seconds["objective"], seconds["ratio_stage"]
    rows = [
        [name, *(f"{part[name]['median'] / part['token']['median']:.2f}" for part in (whole, stage))] for name in whole
    ]
    return table(["ratio", "whole objective, relative to the token ratio", "computing the ratio alone"], rows) + (
        f"\n\nComputing the token ratio takes {stage['token']['median'] * 1e3:.2f} ms, that of a block of 5 "
        f"{stage['block K=5']['median'] * 1e3:.2f} ms."
    )


@block("mtp-heads")
def mtp_heads() -> str:
    """Cost of MPO's prediction heads."""
    found = read("future_heads")
    middle, ends = spread(found["ratio"])
    warm_up = found["warm_up"]
    batches = warm_up["seconds"] / found["seconds"]["backbone"]
    return (
        f"Scoring a batch and its updates take {middle} times as long with heads ({ends}), "
        f"and the warm-up of the heads {warm_up['seconds']:.1f} s, as long as scoring and updates of "
        f"{batches:.0f} batches without heads. The heads have {warm_up['parameters']:,} parameters beside the model's "
        f"{warm_up['model_parameters']:,}."
    )


@block("log-probs")
def log_probs() -> str:
    """Time and memory of log-probabilities in blocks, beside those of all logits at once."""
    names = {"both": "log-probabilities and entropy", "loss": "log-probabilities"}
    rows = []
    for result in read("log_probs")["results"]:
        plain, blocks = result["plain"], result["blocks"]
        middle, ends = spread(blocks["speed_over_plain"])
        rows.append(
            [
                names[result["task"]],
                f"{plain['seconds']:.1f} s, {plain['extra_gib']:.2f} GiB",
                f"{blocks['seconds']:.1f} s, {blocks['extra_gib']:.2f} GiB",
                f"{middle} ({ends})",
                f"{blocks['memory_over_plain']:.3f}",
            ]
        )
    header = ["gradient through", "all logits, log_softmax", "in blocks", "relative speed", "relative memory"]
    return table(header, rows)


@block("planning")
def planning() -> str:
    """Time and memory of Snakemake's planning."""
    found = read("dry_run")
    names = {"few jobs": "one engine for 20 models", "many jobs": "50 seeds, one engine per model"}
    rows = [
        [f"nothing is there; {text}", f"{row['jobs']:,} jobs", f"{row['cpu_seconds']} s", f"{row['peak_mb']:,} MB"]
        for row, text in ((found[name], text) for name, text in names.items())
    ]
    for name in ("finished laptop study", "finished, 20 methods of 64 seeds"):
        files, whole, one = (found[name][key] for key in ("files", "plan", "one job"))
        rows.append([name, f"{files:,} files", f"{whole['cpu_seconds']} s", f"{whole['peak_mb']:,} MB"])
        rows.append([f"{name}: one job of it", "–", f"{one['cpu_seconds']} s", f"{one['peak_mb']:,} MB"])
    rows.append(["target", "", "20 s; 3 s in a job", "1,000 MB"])
    return table(["study", "size", "processor time of a dry run", "peak memory"], rows)


@block("coverage")
def coverage() -> str:
    """Simulated coverage of 95% intervals, by number of seeds."""
    found = read("coverage")

    def ends(seeds: str, place: str, difference: bool) -> str:
        """Lowest and highest coverage of the cells of a kind."""
        parts = [t for t in found["tables"] if t["sd"] != found["skewed"] and (t["change"] is not None) == difference]
        shares = [share for part in parts for share in part[place].get(seeds, {}).values()]
        return f"{min(shares):.1%} to {max(shares):.1%}"

    rows = [
        [seeds, *(ends(seeds, place, difference) for difference in (False, True) for place in ("inner", "edges"))]
        for seeds in found["tables"][0]["inner"]
    ]
    header = ["seeds", "accuracy", "accuracy, edges", "difference", "difference, edges"]
    skewed = [
        share
        for part in found["tables"]
        if part["sd"] == found["skewed"]
        for row in (*part["inner"].values(), *part["edges"].values())
        for share in row.values()
    ]
    return table(header, rows) + (
        f"\n\n{found['draws']:,} draws per cell. Edges are cells in which fewer than {found['edge']} correct answers, "
        "or wrong ones, are expected of all seeds together; no short interval covers exactly 95% there.\n"
        f"With seeds so different that their accuracies are skewed (standard deviation {found['skewed']} in log-odds, "
        f"12 points at 50%): {min(skewed):.1%} at the lowest."
    )


@block("workflow-kills")
def workflow_kills() -> str:
    """Records of whole workflows that were disturbed."""
    found = read("workflow_kills")
    rows = [[kind, str(times)] for kind, times in found["kills"].items()]
    return table(["disturbance", "times"], rows) + (
        f"\n\n{found['episodes']} workflows were run to their end, and {found['differ']} of them differed, on "
        f"{found['hardware']}."
    )
