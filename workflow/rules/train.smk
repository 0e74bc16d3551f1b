rule train:
    # Seeds of one arm, one after the other. Run folders are no outputs: Snakemake would delete them before another
    # attempt, and a stopped run could not resume.
    input:
        inputs_of("train"),
    output:
        JOBS.marker("train"),
    log:
        JOBS.log("train"),
    conda:
        "../../environment.yml"
    params:
        **COMMON,
        seeds=lambda w: w.seeds.split("+"),
    shell:
        stage("train --arm {wildcards.arm:q} --seeds {params.seeds:q}")


rule evaluate:
    # Many models in one engine. Each model's evaluation is written as it is made, so a shard that was stopped does not
    # sample again what it has.
    input:
        inputs_of("evaluate"),
    output:
        JOBS.marker("evaluate"),
    log:
        JOBS.log("evaluate"),
    conda:
        "../../environment.yml"
    params:
        **COMMON,
    shell:
        stage("evaluate --shard {wildcards.shard:q}")
