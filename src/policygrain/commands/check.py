"""Checks of a study before anything is computed: by `policygrain check`, and by the first job of a workflow."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import yaml

from ..data.families import FAMILIES, families_to_demonstrate, generate
from ..data.problem import with_repeats
from ..data.sets import sampling_of
from ..data.sources import check_characters, check_ids, load
from ..errors import UserError, did_you_mean
from ..figures.shown import check_figures
from ..files import read_json
from ..grading.sandbox import isolation
from ..hub import config_of
from ..study import Study, load_study
from ..study.dependencies import start_seeds
from ..study.runs import RULE, check_comparisons, methods_of, run_matrix, train_rules
from ..trainers.check import DYNAMIC_BY_VERL, check_trainers

SOME = 60  # problems that are checked of each synthetic family
SUBMITTED = ("start_model", "train", "train_arm", "evaluate")  # rules whose jobs a cluster runs


def check_study(study: Study) -> None:
    """UserError for the first mistake in methods, figures, problems, initial model or lengths; prints `notes`."""
    for method in methods_of(study):
        method.check()
    check_trainers(study)
    check_comparisons(study)
    check_tuning(study)
    check_figures(study)
    _check_problems(study)
    if study.model.start == "tiny":
        if study.prompt.chat:
            raise UserError("prompt.chat: the tiny model's tokenizer has no chat template; set it to false.")
        if study.model.sft is not None:
            raise UserError("model.sft: fine-tunes a pretrained model; for start: tiny use model.warm_start.")
    families_to_demonstrate(study)
    _check_lengths(study)
    for note in notes(study):
        print(f"policygrain: note: {note}", file=sys.stderr)


def notes(study: Study) -> list[str]:
    messages = []
    needed = study.data.train_size + study.data.validation_size
    for source in study.data.train:
        if source not in FAMILIES and (count := len(load(source, study.data.root, needed))) < needed:
            messages.append(
                f"data.train: {source} has {count} problems, fewer than train_size + validation_size ({needed})."
            )
    arms = run_matrix(study).arms
    trained = [arm.training for arm in arms.values() if arm.training.trainer != "command"]
    if trained and all(t.updates_of_batch == 1 and not t.off_policy_steps for t in trained):
        messages.append(
            "training.updates_per_batch and training.epochs are 1 in all arms, and training.off_policy_steps is 0: all "
            "importance ratios are 1, and methods that differ only in the ratio or clip are the same."
        )
    if stale := [name for name, arm in arms.items() if 4 * arm.training.off_policy_steps >= arm.training.steps]:
        messages.append(
            f"training.off_policy_steps: in {stale[0]} a quarter of the batches or more are sampled by the initial "
            "model, and age is not constant; train more steps."
        )
    by_verl = any(arm.training.trainer == "verl" and arm.method.sampler.dynamic for arm in arms.values())
    return messages + [DYNAMIC_BY_VERL] * by_verl


def _check_problems(study: Study) -> None:
    """Read all problems. UserError for a missing or wrong source or line, or tests that this machine cannot isolate."""
    data = study.data
    keys = {source: (f"data.train[{i}]", "data.train") for i, source in enumerate(data.train)}
    for i, b in enumerate(study.evaluation.benchmarks):
        keys.setdefault(b.source, (f"evaluation.benchmarks[{i}].source", f"evaluation.benchmarks: {b.name}"))
    for source, (key, where) in keys.items():
        if source in FAMILIES:
            problems = generate(source, "train", SOME, data.seed, data.levels)
        else:
            problems = load(source, data.root, where=key)
            for benchmark in study.evaluation.benchmarks:
                if benchmark.source == source:
                    repeats = with_repeats(problems[: benchmark.size])
                    check_ids(repeats, f"evaluation.benchmarks: {benchmark.name}")
                    drawn = "pass_at_k" in study.figures and sampling_of(study, benchmark).n > 1
                    if drawn and len({*repeats.values()}) > 1:
                        raise UserError(f"figures: pass_at_k: {benchmark.name} repeats some problems more than others.")
            inexact = next((p.id for p in problems if not (p.options.tests or p.options.exact)), None)
            if study.grader == "numeric" and inexact is not None:
                raise UserError(f"grader: {where}: {inexact} has a tolerance or a list of answers; set grader: math.")
        check_characters(study, problems, where)
        if any(problem.options.tests for problem in problems):
            isolation()


def _context(study: Study) -> int | None:
    """The initial model's context length in tokens, None if unknown. UserError if the model is not found."""
    if study.model.start == "tiny":
        return study.model.tiny.context
    folder = Path(study.model.start)
    for name in ("config.json", "tokenizer_config.json"):
        if folder.is_dir() and not (folder / name).is_file():
            raise UserError(f"model.start: {folder} is not a model with a tokenizer: {name} is missing.")
    try:
        config = read_json(config_of(study.model.start, study.model.revision), "Download the model again.")
    except UserError as error:
        raise UserError(f"model.start: {error}") from error
    context = config.get("text_config", config).get("max_position_embeddings")
    return context if isinstance(context, int) else None


def _check_lengths(study: Study) -> None:
    trained = [arm.training for arm in run_matrix(study).arms.values() if arm.training.trainer != "command"]
    lengths = {"training.max_tokens": max((training.max_tokens for training in trained), default=0)}
    for i, benchmark in enumerate(study.evaluation.benchmarks):
        key = "sampling" if benchmark.sampling is None else f"benchmarks[{i}].sampling"
        lengths[f"evaluation.{key}.max_tokens"] = sampling_of(study, benchmark).max_tokens
    context = _context(study)
    for key, length in lengths.items():
        if context is not None and length >= context:
            raise UserError(f"{key}: {length} tokens leave no room for a prompt in the model's context of {context}.")


def check_tuning(study: Study) -> None:
    """UserError if this study shares problems, seeds or initial models that are made with a study in `tuned_on`."""
    for path in study.tuned_on:
        try:
            both = (study, load_study(path))
        except UserError as error:
            raise UserError(f"tuned_on: {error}") from error
        same = both[1].data.seed == study.data.seed  # of other sources the seed only shuffles the problems
        generated = [[source for source in one.data.train if same and source in FAMILIES] for one in both]
        given = [[source for source in one.data.train if source not in FAMILIES] for one in both]
        trained = [sorted({run.seed for run in run_matrix(one).runs}) for one in both]
        made = [start_seeds(one) if one.model.is_made else [] for one in both]
        for reason, (mine, others) in (
            ("data.train: the problems of %s belong to both", given),
            (f"data.seed: {study.data.seed} makes the same problems (%s) for", generated),
            ("seeds: training seeds %s belong to both", trained),
            ("seeds: initial models %s belong to both", made),
        ):
            if shared := ", ".join(str(one) for one in mine if one in others):
                raise UserError(
                    f"{reason % shared} this study and {path}, which chose its settings (tuned_on). Choose other "
                    f"values in one of them and run it again {RULE.format(4)}."
                )


# ---- what a cluster refuses, before jobs wait for it -----------------------------------------------------------------


def check_cluster(profile: Path, study: Study) -> None:
    """Ask SLURM whether it accepts the request of each rule, and print it. UserError with all that are refused."""
    refused = []
    for rule, words in requests(profile, study).items():
        print(f"{rule}: {shlex.join(words)}", flush=True)
        command = ["sbatch", "--test-only", *words, "--wrap=true"]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        if asked.returncode:
            refused.append(f"{profile}, {rule}: {asked.stderr.strip().splitlines()[-1]}")
    if refused:
        raise UserError("\n".join(refused))


class Wanted(dict[str, object]):
    """The resources of a rule, as Snakemake's executor reads those of a job."""

    __getattr__ = dict.get


def requests(profile: Path, study: Study) -> dict[str, list[str]]:
    """Rule → the options of sbatch by which Snakemake's executor requests its resources. UserError for wrong ones."""
    rules = dict.fromkeys([*SUBMITTED, *train_rules(study)])
    found, fixed = {}, {"run_uuid": "x", "slurm_logfile": "x", "comment_str": "x", "workdir": None}
    try:
        from snakemake.resources import Resources
        from snakemake_executor_plugin_slurm.submit_string import get_submit_command
        from snakemake_executor_plugin_slurm.utils import set_gres_string

        content = yaml.safe_load(profile.read_text(encoding="utf-8"))
        own, default = (content.get(key) or {} for key in ("set-resources", "default-resources"))
        options = {key: content.get(f"slurm-{key}") for key in ("qos", "reservation")}
        options |= {"requeue": False, "no_requeue": False}  # srun has no such options
        for rule in rules:
            wanted = Wanted(Resources.from_mapping({**default, **(own.get(rule) or {})}).unwrapped_items())
            job, named = SimpleNamespace(resources=wanted, threads=1), dict.fromkeys(("account", "partition"), "")
            named |= {n: shlex.join([f"--{n}={wanted[f'slurm_{n}']}"]) for n in named if f"slurm_{n}" in wanted}
            words = shlex.split(get_submit_command(job, {**fixed, **named}, SimpleNamespace(**options)))
            found[rule] = [*words[words.index("--comment") + 2 :], *shlex.split(set_gres_string(job))]
    except Exception as error:  # those of Snakemake, its executor, YAML and files have no common class
        raise UserError(f"{profile}: cannot be read as a Snakemake profile: {error}") from error
    for rule in (rule for rule in own if rule not in rules and not rule.startswith("train_arm_")):
        hint = did_you_mean(rule, rules)
        raise UserError(f"{profile}: set-resources: {rule!r} is not a rule that runs as a job.{hint}")
    return found
