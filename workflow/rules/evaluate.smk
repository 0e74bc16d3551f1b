rule evaluate:
    # Many models in one engine. Each model's evaluation is written as it is made, so a shard that was stopped does not
    # sample again what it has.
    input:
        inputs_of("evaluate"),
    output:
        JOBS.marker("evaluate"),
    log:
        JOBS.log("evaluate"),
    params:
        **COMMON,
        models=lambda w: JOBS.models(w.shard),
    shell:
        "exec {params.policygrain} evaluate --config {params.study:q} --data {params.data:q}"
        " --results {params.results:q} --done {output:q} {params.models:q} 2>>{log:q}"
