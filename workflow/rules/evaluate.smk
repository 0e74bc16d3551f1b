# The models of an arm, or the initial models (`start`), in one engine. `models` are their records, and the models are in the
# same folders; so are, afterwards, the responses.
rule evaluate:
    input:
        settings="results/{study}/settings/evaluation.json",
        benchmarks=BENCHMARKS,
        models=lambda w: (initial_models(STUDY.seeds) if w.arm == START else runs_of(w.arm)),
    output:
        "results/{study}/evaluation/{arm}.json",
    log:
        "results/{study}/logs/evaluate/{arm}.log",
    params:
        arms=lambda w: [w.arm],
    message:
        "evaluate {params.arms}"
    shell:
        "exec {POLICYGRAIN} evaluate --config results/{wildcards.study}/study.yaml --arms {params.arms:q}"
        " > {log:q} 2>&1"


if STUDY.evaluation.after_training and EVALUATED:

    # The processes that train have evaluated: one process evaluates the initial models, and records all arms.
    use rule evaluate as evaluate_all with:
        input:
            settings="results/{study}/settings/evaluation.json",
            benchmarks=BENCHMARKS,
            models=[
                *initial_models(STUDY.seeds),
                *(run for arm in EVALUATED for run in runs_of(arm)),
            ],
        output:
            expand(
                "results/{study}/evaluation/{arm}.json",
                arm=EVALUATED,
                allow_missing=True,
            ),
        log:
            "results/{study}/logs/evaluate.log",
        params:
            arms=EVALUATED,

    ruleorder: evaluate_all > evaluate
