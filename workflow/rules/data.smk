rule prepare:
    output:
        ALL_DATA,
    log:
        log_of("prepare", "data"),
    # Problems: training, validation, benchmarks.
    localrule: True
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        study=str(FOLDER.study),
        out=lambda w: str(FOLDER.data.path),
        done=PREPARE,
    shell:
        "exec {params.policygrain} prepare --config {params.study:q} --out {params.out:q} --done {params.done:q}"
        " 2>{log:q}"


rule start_model:
    # A tiny model, trained by supervised fine-tuning to a middling accuracy; one per seed, shared by all methods.
    input:
        ancient(TRAINING_DATA),
    output:
        done("start_model", "seed{seed}", "{fingerprint}"),
    log:
        log_of("start_model", "seed{seed}-{fingerprint}"),
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        study=str(FOLDER.study),
        data=lambda w: str(FOLDER.data.path),
        out=lambda w: str(FOLDER.start(w.seed).path),
    shell:
        "exec {params.policygrain} start-model --config {params.study:q} --seed {wildcards.seed:q} --data {params.data:q}"
        " --out {params.out:q} --done {output:q} 2>{log:q}"
