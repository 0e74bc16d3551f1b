"""`policygrain plan`: jobs, tokens and device-hours of a study, and the seeds that a difference needs.

Device-hours are FLOPs divided by a device's rate for sampling or training, plus the start of each job. A token that is
sampled or scored costs 2N FLOPs, one that is trained on 6N (Kaplan et al., arXiv 2001.08361), 8N with activation
checkpointing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from .. import hub
from ..data.families import CHARACTERS, FAMILIES
from ..data.problem import read_rows
from ..data.sets import SETS, data_root, sampling_of
from ..data.sources import FAMILY_SIZE
from ..errors import UserError, did_you_mean
from ..files import read_json
from ..study.dependencies import start_seeds
from ..study.runs import Arm, pairs, run_matrix
from ..study.schema import Benchmark, Model, Study
from ..text import columns, markdown_table

if TYPE_CHECKING:
    from ..analysis.statistics import Array, Difference
    from ..results import StudyResults

TOKENS = ("sampled", "scored", "trained")  # by a forward pass, and on; both include prompts
EFFECTS = (1.0, 2.0, 4.0)  # points


def constants() -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load(resources.files(__package__).joinpath("constants.yaml").read_text(encoding="utf-8")))


def run_tokens(study: Study, arm: Arm, lengths: Mapping[str, Any]) -> Array:
    """Numbers of `TOKENS` [3] of a run: its steps, and validation before them, regularly and after the last."""
    method, training = arm.method, arm.training
    if training.trainer == "command":  # nothing is known of it
        return np.zeros(3)
    one = min(lengths["response"], training.max_tokens)
    draws = min(lengths["draws"], method.sampler.max_batches) if method.sampler.dynamic else 1.0
    reference = 1 if "reference" in method.needs else 1 / 4  # of the groups, for the metric `kl_initial`
    passes = 1 + reference + training.epochs * ("step_log_probs" in method.needs)
    response, text = training.group * one, lengths["prompt"] + training.group * one
    step = training.prompts_per_step * np.array([draws * response, passes * text, training.epochs * text])
    validations = math.ceil(training.steps / training.validate_every) + 1
    problems = study.data.validation_size * len(study.data.train)
    return training.steps * step + np.array([validations * problems * one, 0, 0])


def evaluation_tokens(study: Study, lengths: Mapping[str, Any]) -> Array:
    sampled = 0.0
    for benchmark in study.evaluation.benchmarks:
        sampling = sampling_of(study, benchmark)
        responses = benchmark_size(study, benchmark) * (sampling.n + study.evaluation.greedy)
        sampled += responses * min(lengths["response"], sampling.max_tokens)
    return np.array([sampled, 0, 0])


def jobs(study: Study, lengths: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """(rule, numbers of `TOKENS` [3]) of each job that is submitted to a cluster, as in workflow/rules."""
    matrix, starts, evaluation = run_matrix(study), len(start_seeds(study)), evaluation_tokens(study, lengths)
    if study.model.is_made:
        tuning = study.model.sft or study.model.warm_start
        trained = tuning.steps * tuning.batch_size * (lengths["prompt"] + lengths["response"])
        yield from [("start_model", np.array([0, 0, trained]))] * starts
    after_training = study.evaluation.after_training
    for arm, runs in matrix.by_arm().items():
        tokens = run_tokens(study, matrix.arms[arm], lengths)
        if after_training and arm in matrix.evaluated_arms:
            tokens = tokens + evaluation
        together = len(runs) if study.seeds_per_process == "all" else 1
        yield from [("train", together * tokens)] * (len(runs) // together)
    if matrix.evaluated:
        yield "evaluate", starts * evaluation
    if not after_training:
        for count in Counter(run.arm for run in matrix.evaluated).values():
            yield "evaluate", count * evaluation


def benchmark_size(study: Study, benchmark: Benchmark) -> int:
    """Number of problems: of a synthetic family `size`, of a registered set or file all, at most `size`."""
    source, size = benchmark.source, benchmark.size
    if source in FAMILIES or (size and source not in SETS and not (data_root(study.data.root) / source).is_file()):
        return size or FAMILY_SIZE
    count = SETS[source].count if source in SETS else sum(1 for _ in read_rows(data_root(study.data.root) / source))
    return min(count, size or count)


def config_of(model: Model, known: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The `config.json` of the initial model: of a tiny one, in a folder, in ``known``, or in the hub's local cache."""
    if model.start == "tiny":
        shape = {"hidden": "hidden_size", "intermediate": "intermediate_size", "layers": "num_hidden_layers"}
        sizes = {name: getattr(model.tiny, ours) for ours, name in (shape | {"heads": "num_attention_heads"}).items()}
        return sizes | {"vocab_size": model.tiny.vocabulary or len(CHARACTERS), "tie_word_embeddings": True}
    if model.start in known and not Path(model.start).is_dir():
        return known[model.start]
    return dict(read_json(hub.config_of(model.start, model.revision, offline=True), "Download the model again."))


def parameters(config: Mapping[str, Any]) -> int:
    """N, of a dense decoder's matrices. UserError if ``config``, a `config.json`, is not that of a dense decoder."""
    try:
        hidden, heads, vocabulary = (config[key] for key in ("hidden_size", "num_attention_heads", "vocab_size"))
        head, keys = config.get("head_dim") or hidden // heads, config.get("num_key_value_heads") or heads
        layer = 2 * hidden * head * (heads + keys) + 3 * hidden * config["intermediate_size"]
        count = config["num_hidden_layers"] * layer + hidden * vocabulary
    except KeyError as error:
        raise UserError(f"model.start: its config.json lacks {error}; a plan counts decoders like Qwen2.") from error
    if any("experts" in key for key in config):
        raise UserError("model.start: a plan counts dense decoders, and this model has experts.")
    return count + (0 if config.get("tie_word_embeddings") else hidden * vocabulary)


def hours_of(tokens: Array, n: float, device: Mapping[str, Any], checkpointing: bool = False) -> float:
    flops = n * np.array([2, 2, 8 if checkpointing else 6])
    return float(tokens @ (flops / [device["sample"], device["train"], device["train"]])) / 3600


def estimate(study: Study, device_name: str) -> dict[str, Any]:
    """The plan as plain data, in tokens and device-hours. UserError for a device or model that is not known."""
    known = constants()
    if (device := known["devices"].get(device_name)) is None:
        raise UserError(f"--device: unknown device {device_name!r}.{did_you_mean(device_name, known['devices'])}")
    lengths = known["lengths"].get(study.model.start, known["lengths"]["default"])
    n = parameters(config_of(study.model, known["models"]))
    rules: dict[str, Counter[str]] = defaultdict(Counter)
    for rule, tokens in jobs(study, lengths):
        hours = device["start"] / 3600 + hours_of(tokens, n, device, study.training.activation_checkpointing)
        for row in (rule, "all"):
            rules[row].update({"jobs": 1, **dict(zip(TOKENS, tokens.tolist(), strict=True)), "hours": hours})
    rules["all"] = rules.pop("all")  # the last one
    matrix = run_matrix(study)
    plan = {"study": study.name, "model": study.model.start, "parameters": n, "runs": len(matrix.runs)}
    plan["by_command"] = sum(matrix.arms[run.arm].training.trainer == "command" for run in matrix.runs)
    return plan | {"device": {"name": device_name, **device}, "lengths": lengths, "rules": rules}


def shown(number: float) -> str:
    return f"{number:,.0f}" if number >= 99.5 else f"{number:.2g}"


def plan_text(plan: Mapping[str, Any]) -> str:
    rows = [[rule, *map(shown, of.values())] for rule, of in plan["rules"].items()]
    header = ["rule", "jobs", "tokens sampled", "scored", "trained", "device-hours"]
    device, lengths = plan["device"], plan["lengths"]
    lines = [
        f"{plan['study']}: {plan['model']}, {shown(plan['parameters'])} parameters",
        f"on {device['title']} ({'measured' if device['measured'] else 'assumed, not measured'})\n",
        *columns(rows, header, "lr"),
        f"\nlengths  {lengths['prompt']:g} tokens per prompt, {lengths['response']:g} per response, "
        f"{lengths['draws']:g} prompts sampled for each that dynamic sampling keeps. {lengths['source']}",
        f"device   {device['source']}\n",
    ]
    if plan["by_command"]:
        lines.append(f"The cost of {plan['by_command']} runs by a command is not known, and is not counted.\n")
    return "\n".join(lines)


def power_text(plan: Mapping[str, Any], study: Study, results: StudyResults) -> str:
    """A Markdown table: seeds per arm that show a difference, by the spread in ``results``, and hours of both arms."""
    from ..analysis.measures import FEWEST, contrasts
    from ..analysis.statistics import POWER, pooled_spread, seeds_to_show

    found: dict[tuple[str, str], list[Difference]] = defaultdict(list)
    for contrast in contrasts(results):
        settings = ", ".join(f"{key} {value}" for key, value in contrast.pair.arm.settings) or "the study's"
        for endpoint in () if contrast.identical else ("auc", "sampled", "greedy"):
            difference = getattr(contrast, endpoint)
            if difference is not None and difference.replicated and math.isfinite(difference.spread):
                found[settings, endpoint].append(difference)
    if not found:
        raise UserError(f"--power: no comparison in {results.folder.path} has two seeds.")
    per_run = sum(of["hours"] for rule, of in plan["rules"].items() if rule in ("train", "evaluate")) / plan["runs"]
    comparisons = max(Counter(pair.whole for pair in pairs(study)).values(), default=1)
    effects = sorted({*EFFECTS, *(e.margin for e in study.experiments.values() if e.margin)})
    rows = []
    for key, differences in found.items():
        sd, low, high = pooled_spread(differences)
        row = [*key, f"{sd:.1f} [{low:.1f}, {high:.1f}]"]
        for effect in effects:
            needed = (seeds_to_show(effect, spread, comparisons) for spread in (sd, high))
            seeds, most = (n and max(n, FEWEST) for n in needed)
            cost = shown(2 * (seeds or 0) * per_run)
            row.append(f"{seeds} (to {most or 'over 1,000'}): {cost} h" if seeds else "over 1,000")
        rows.append(row)
    header = ["settings", "endpoint", "paired sd, points", *(f"{effect:g} points" for effect in effects)]
    return markdown_table(header, rows) + (
        f"\nSeeds per arm with which {POWER:.0%} of studies show the direction of a true difference of this size; in "
        f"brackets: with the upper limit of the sd. Holm's correction for comparisons of the study: {comparisons}. "
        f"Hours: both arms of {plan['study']}, {shown(per_run)} device-hours a run with its evaluation. The sd is that "
        f"of the study {results.study.name}; another model may have a different one.\n"
    )
