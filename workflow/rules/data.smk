rule prepare:
    # Problems: training, validation, benchmarks.
    input:
        study=ancient(STUDY_FILE),
    output:
        train=f"{RESULTS}/data/train.jsonl",
        validation=f"{RESULTS}/data/validation.jsonl",
        benchmarks=[f"{RESULTS}/data/benchmarks/{b.name}.jsonl" for b in STUDY.evaluation.benchmarks],
    params:
        policygrain=POLICYGRAIN,
        out=f"{RESULTS}/data",
        content=[STUDY.data.model_dump(mode="json"), [b.model_dump() for b in STUDY.evaluation.benchmarks]],
    log:
        f"{RESULTS}/logs/prepare.log",
    conda:
        "../../environment.yml"
    shell:
        "exec {params.policygrain} prepare --config {input.study} --out {params.out} 2>{log}"


rule start_model:
    # A tiny model, taught from nothing to a middling accuracy; one per seed, shared by all methods.
    input:
        study=ancient(STUDY_FILE),
        train=rules.prepare.output.train,
    output:
        f"{RESULTS}/start/seed{{seed}}/start.json",
    params:
        policygrain=POLICYGRAIN,
        data=f"{RESULTS}/data",
        out=f"{RESULTS}/start/seed{{seed}}",
        content=STUDY.model.model_dump(),
    log:
        f"{RESULTS}/logs/start/seed{{seed}}.log",
    conda:
        "../../environment.yml"
    shell:
        "exec {params.policygrain} start-model --config {input.study} --seed {wildcards.seed} --data {params.data}"
        " --out {params.out} 2>{log}"
