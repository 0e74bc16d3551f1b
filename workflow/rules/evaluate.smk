# The models of an arm, or the initial models (`start`), in one engine: a job per arm. With `evaluation.after_training` the
# processes that train have evaluated, and one job evaluates the initial models and records all arms.
ARMS = EVALUATED if STUDY.evaluation.after_training and EVALUATED else ["{arm}"]


# The job reads the models in the folders of these records, and writes the responses there.
rule evaluate:
    input:
        settings=expand("results/{study}/settings/evaluation/{arm}.json", arm=ARMS, allow_missing=True),
        benchmarks=BENCHMARKS,
        models=lambda w: [
            *initial_models(STUDY.seeds if w.get("arm", START) == START else []),
            *summaries(run for run in MATRIX.evaluated if run.arm == w.get("arm", run.arm)),
        ],
    output:
        expand("results/{study}/evaluation/{arm}.json", arm=ARMS, allow_missing=True),
    log:
        "results/{study}/logs/evaluate.log" if len(ARMS) > 1 else "results/{study}/logs/evaluate/{arm}.log",
    params:
        arms=lambda w: [w.get("arm", arm) for arm in ARMS],
    message:
        "evaluate {params.arms}"
    shell:
        "exec {POLICYGRAIN} evaluate --config results/{wildcards.study}/study.yaml --arms {params.arms:q}"
        " > {log:q} 2>&1"
