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


rule estimators:
    # Gradient estimators against the true gradient, from an initial model.
    input:
        inputs_of("estimators"),
    output:
        JOBS.marker("estimators"),
    log:
        JOBS.log("estimators"),
    # Before training: they take longest, and nothing is left to run beside one that is started last.
    priority: 1
    conda:
        "../../environment.yml"
    params:
        **COMMON,
        instrument="estimators",
    shell:
        stage("{params.instrument} --seed {wildcards.seed}")


# One round of updates by each method, from an initial model.
use rule estimators as rounds with:
    input:
        inputs_of("rounds"),
    output:
        JOBS.marker("rounds"),
    log:
        JOBS.log("rounds"),
    params:
        **COMMON,
        instrument="rounds",


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
