rule evaluate:
    # Many checkpoints in one engine. Each model's records are kept beside it as they are made, so a shard that was
    # stopped does not sample again what it has.
    input:
        benchmarks=rules.prepare.output.benchmarks,
        contamination=rules.prepare.output.contamination,
        start=lambda w: start_records(START_SEEDS) if w.shard == min(SHARDS) else [],
        runs=lambda w: unique(TRAINED[run] for run in SHARDS[w.shard]),
    output:
        f"{RESULTS}/evaluation/{{shard}}.jsonl",
    log:
        f"{RESULTS}/logs/evaluate/{{shard}}.log",
    conda:
        "../../environment.yml"
    params:
        policygrain=POLICYGRAIN,
        study=STUDY_FILE,
        data=lambda w, input: parent(parent(input.benchmarks[0])),
        models=lambda w: [
            f"{name}={folder}" for name, folder in shard_models(w.shard).items()
        ],
        content=[STUDY.evaluation.model_dump(), STUDY.verifier],
    shell:
        "exec {params.policygrain} evaluate --config {params.study} --data {params.data} --out {output} {params.models} 2>>{log}"
