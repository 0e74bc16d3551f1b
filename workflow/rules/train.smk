# The trainer resumes from the newest checkpoint in the run's folder. Only summary.json is an output, because Snakemake removes
# outputs before every attempt; a run that has ended is found by its key in run.json, and costs no step.
rule train:
    input:
        settings="results/{study}/settings/arms/{arm}.json",
        problems="results/{study}/data/train.jsonl",
        validation="results/{study}/data/validation.jsonl",
        benchmarks=BENCHMARKS if STUDY.evaluation.after_training else [],
        start=lambda w: initial_models([w.seed]),
    output:
        "results/{study}/runs/{arm}/seed{seed}/summary.json",
    log:
        "results/{study}/logs/train/{arm}/seed{seed}.log",
    wildcard_constraints:
        seed=r"\d+" if STUDY.seeds_per_process == 1 else "none",  # else the rules below train
    params:
        launcher=launch,
        seeds=lambda w: [w.seed],
    message:
        "train {wildcards.arm}, seed {params.seeds}"
    shell:
        "exec {params.launcher}{POLICYGRAIN} train --config results/{wildcards.study}/study.yaml --arm {wildcards.arm:q}"
        " --seeds {params.seeds} > {log:q} 2>&1"


# With `seeds_per_process: all`, for runs that take seconds, one process trains all seeds of an arm. Arms may have different
# seeds, and outputs cannot depend on a wildcard: a rule per list of seeds, `train_arm` for the first.
SEEDS_OF = {arm: [run.seed for run in runs] for arm, runs in MATRIX.by_arm().items()}

SEED_LISTS = list(dict.fromkeys(map(tuple, SEEDS_OF.values()))) if STUDY.seeds_per_process == "all" else []

for seeds in SEED_LISTS:

    rule:
        name:
            "train_arm" if seeds == tuple(STUDY.seeds) else f"train_arm_{'_'.join(map(str, seeds))}"
        input:
            rules.train.input.settings,
            rules.train.input.problems,
            rules.train.input.validation,
            rules.train.input.benchmarks,
            initial_models(seeds),
        output:
            expand(
                "results/{study}/runs/{arm}/seed{seed}/summary.json",
                seed=seeds,
                allow_missing=True,
            ),
        log:
            "results/{study}/logs/train/{arm}.log",
        wildcard_constraints:
            arm="|".join(re.escape(arm) for arm, of_arm in SEEDS_OF.items() if of_arm == list(seeds)),
        params:
            launcher=launch,
            seeds=seeds,
        message:
            "train {wildcards.arm}, seeds {params.seeds}"
        shell:
            "exec {params.launcher}{POLICYGRAIN} train --config results/{wildcards.study}/study.yaml --arm {wildcards.arm:q}"
            " --seeds {params.seeds} > {log:q} 2>&1"
