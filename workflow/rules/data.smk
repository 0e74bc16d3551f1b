rule prepare:
    # Problems: training, validation, benchmarks.
    output:
        JOBS.prepare.outputs,
    log:
        str(FOLDER.log("prepare", "data")),
    localrule: True
    params:
        **COMMON,
        done=JOBS.prepare.markers,
    shell:
        "exec {params.policygrain} prepare --config {params.study:q} --out {params.data:q} --done {params.done:q}"
        " 2>{log:q}"


rule start_model:
    # A tiny model, trained by supervised fine-tuning to a middling accuracy; one per seed, shared by all methods;
    # several in one process, one after the other.
    input:
        inputs_of("start_model"),
    output:
        JOBS.marker("start_model"),
    log:
        JOBS.log("start_model"),
    params:
        **COMMON,
        seeds=seeds_of,
        out=lambda w: str(FOLDER.start("{seed}").path),
    shell:
        "exec {params.policygrain} start-model --config {params.study:q} --seeds {params.seeds:q} --data {params.data:q}"
        " --out {params.out:q} --done {output:q} 2>{log:q}"
