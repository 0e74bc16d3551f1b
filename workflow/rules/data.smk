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
    # A tiny model, trained by supervised fine-tuning to a middling accuracy; one per seed, shared by all methods;
    # several in one process, one after the other.
    input:
        ancient(TRAINING_DATA),
    output:
        done("start_model", "seed{seeds}", "{fingerprint}"),
    log:
        log_of("start_model", "seed{seeds}-{fingerprint}"),
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        study=str(FOLDER.study),
        data=lambda w: str(FOLDER.data.path),
        seeds=lambda w: w.seeds.split("+"),
        out=lambda w: str(FOLDER.start("{seed}").path),
    shell:
        "exec {params.policygrain} start-model --config {params.study:q} --seeds {params.seeds:q} --data {params.data:q}"
        " --out {params.out:q} --done {output:q} 2>{log:q}"
