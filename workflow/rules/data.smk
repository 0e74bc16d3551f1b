rule prepare:
    # Problems: training, validation, benchmarks.
    output:
        JOBS.prepare.outputs,
    log:
        str(FOLDER.log("prepare", "data")),
    localrule: True
    conda:
        "../../environment.yml"
    params:
        **COMMON,
        done=JOBS.prepare.markers,
    shell:
        stage("prepare", done="{params.done:q}", log=">")


rule start_model:
    # A tiny model, trained by supervised fine-tuning to a middling accuracy; one per seed, shared by all methods.
    input:
        inputs_of("start_model"),
    output:
        JOBS.marker("start_model"),
    log:
        JOBS.log("start_model"),
    conda:
        "../../environment.yml"
    params:
        **COMMON,
    shell:
        stage("start-model --seed {wildcards.seed}")
