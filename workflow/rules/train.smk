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
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        seeds=lambda w: [w.seed],
    # The trainer resumes from the newest checkpoint in the run's folder. Only summary.json is an output, because Snakemake
    # removes outputs before every attempt; a run that has ended is found by its key in run.json, and costs no step.
    message:
        "train {wildcards.arm}, seed {params.seeds}"
    shell:
        "exec {params.policygrain} train --config results/{wildcards.study}/study.yaml --arm {wildcards.arm:q}"
        " --seeds {params.seeds} > {log:q} 2>&1"


if STUDY.seeds_per_process == "all":

    # Runs of tiny models take seconds: one process trains all seeds of an arm.
    use rule train as train_arm with:
        input:
            settings="results/{study}/settings/arms/{arm}.json",
            problems="results/{study}/data/train.jsonl",
            validation="results/{study}/data/validation.jsonl",
            benchmarks=BENCHMARKS if STUDY.evaluation.after_training else [],
            start=initial_models(STUDY.seeds),
        output:
            expand(
                "results/{study}/runs/{arm}/seed{seed}/summary.json",
                seed=STUDY.seeds,
                allow_missing=True,
            ),
        log:
            "results/{study}/logs/train/{arm}.log",
        wildcard_constraints:
            arm="|".join(
                re.escape(arm)
                for arm, runs in MATRIX.by_arm().items()
                if len(runs) == len(STUDY.seeds)
            ),
        params:
            policygrain=policygrain,
            seeds=STUDY.seeds,

    ruleorder: train_arm > train
