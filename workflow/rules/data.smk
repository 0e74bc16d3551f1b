rule study:
    # The resolved study, kept beside its results. The rules read it as `ancient`: which of them run again is decided
    # by their params, not by this file's age.
    output:
        STUDY_FILE,
    log:
        f"{RESULTS}/logs/study.log",
    params:
        content=STUDY.model_dump(mode="json") | {"base": None},
    run:
        Path(output[0]).write_text(
            yaml.safe_dump(params.content, sort_keys=False, allow_unicode=True)
        )


rule prepare:
    # Problems: training, validation, benchmarks.
    input:
        study=ancient(STUDY_FILE),
    output:
        train=f"{RESULTS}/data/train.jsonl",
        validation=f"{RESULTS}/data/validation.jsonl",
        benchmarks=[
            f"{RESULTS}/data/benchmarks/{b.name}.jsonl"
            for b in STUDY.evaluation.benchmarks
        ],
    log:
        f"{RESULTS}/logs/prepare.log",
    conda:
        "../../environment.yml"
    params:
        policygrain=POLICYGRAIN,
        out=lambda w, output: parent(output.train),
        content=[
            STUDY.data.model_dump(mode="json"),
            [b.model_dump() for b in STUDY.evaluation.benchmarks],
        ],
    shell:
        "exec {params.policygrain} prepare --config {input.study} --out {params.out} 2>{log}"


rule start_model:
    # A tiny model, taught from nothing to a middling accuracy; one per seed, shared by all methods.
    input:
        study=ancient(STUDY_FILE),
        train=rules.prepare.output.train,
    output:
        f"{RESULTS}/start/seed{{seed}}/start.json",
    log:
        f"{RESULTS}/logs/start/seed{{seed}}.log",
    conda:
        "../../environment.yml"
    params:
        policygrain=POLICYGRAIN,
        data=lambda w, input: parent(input.train),
        out=lambda w, output: parent(output[0]),
        content=STUDY.model.model_dump(),
    shell:
        "exec {params.policygrain} start-model --config {input.study} --seed {wildcards.seed} --data {params.data}"
        " --out {params.out} 2>{log}"
