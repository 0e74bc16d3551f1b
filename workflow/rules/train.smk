# A job per run; or, with `seeds_per_process: all`, for runs that take seconds, one that trains all seeds of an arm. Arms may
# have different seeds, and outputs cannot depend on a wildcard: a rule per list of seeds, `train_arm` for the study's.
# The trainer resumes from the newest checkpoint in the run's folder. Only summary.json is an output, because Snakemake removes
# outputs before every attempt; a run that has ended is found by its key in ended.json, and costs no step. The job also reads
# study.yaml, the model of `start` and the benchmarks, and writes metrics, model and evaluation beside summary.json.
for rule_name, (seeds, arms) in train_rules(STUDY).items():
    log_file = "results/{study}/logs/train/{arm}" + ("/seed{seed}.log" if seeds == ("{seed}",) else ".log")

    rule:
        name:
            rule_name
        input:
            settings="results/{study}/settings/arms/{arm}.json",
            problems="results/{study}/data/train.jsonl",
            validation="results/{study}/data/validation.jsonl",
            benchmarks="results/{study}/data/contamination.json" if STUDY.evaluation.after_training else [],  # of the same job
            start=lambda w, seeds=seeds: initial_models([w.get("seed", seed) for seed in seeds]),
        output:
            expand("results/{study}/runs/{arm}/seed{seed}/summary.json", seed=seeds, allow_missing=True),
        log:
            log_file,
        wildcard_constraints:
            arm="|".join(map(re.escape, arms)),
        threads: STUDY.training.threads
        params:
            launcher=lambda w, resources: launcher(resources),
            seeds=lambda w, seeds=seeds: [w.get("seed", seed) for seed in seeds],
        message:
            "train {wildcards.arm}, seeds {params.seeds}"
        shell:
            "exec {params.launcher}{POLICYGRAIN} train --config results/{wildcards.study}/study.yaml"
            " --arm {wildcards.arm:q} --seeds {params.seeds} > {log:q} 2>&1"
