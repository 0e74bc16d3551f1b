rule prepare:
    output:
        train=f"{RESULTS}/data/train.jsonl",
        validation=f"{RESULTS}/data/validation.jsonl",
        contamination=f"{RESULTS}/data/contamination.json",
        benchmarks=[
            f"{RESULTS}/data/benchmarks/{b.name}.jsonl"
            for b in STUDY.evaluation.benchmarks
        ],
    log:
        f"{RESULTS}/logs/prepare.log",
    # Problems: training, validation, benchmarks.
    localrule: True
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        study=STUDY_FILE,
        out=lambda w, output: parent(output.train),
        content=[
            STUDY.data.model_dump(mode="json"),
            [b.model_dump() for b in STUDY.evaluation.benchmarks],
        ],
    shell:
        "exec {params.policygrain} prepare --config {params.study} --out {params.out} 2>{log}"


rule start_model:
    # A tiny model, taught from nothing to a middling accuracy; one per seed, shared by all methods.
    input:
        train=rules.prepare.output.train,
    output:
        f"{RESULTS}/start/seed{{seed}}/start.json",
    log:
        f"{RESULTS}/logs/start/seed{{seed}}.log",
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        study=STUDY_FILE,
        data=lambda w, input: parent(input.train),
        out=lambda w, output: parent(output[0]),
        content=STUDY.model.model_dump(),
    shell:
        "exec {params.policygrain} start-model --config {params.study} --seed {wildcards.seed}"
        " --data {params.data} --out {params.out} 2>{log}"
