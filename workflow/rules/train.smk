rule train:
    # Seeds of one arm, one after the other. Run folders are no outputs: Snakemake would delete them before another
    # attempt, and a stopped run could not resume.
    input:
        inputs_of("train"),
    output:
        JOBS.marker("train"),
    log:
        JOBS.log("train"),
    params:
        **COMMON,
        launch=lambda w, resources: launch(resources),
        seeds=seeds_of,
        run_dir=lambda w: str(FOLDER.run(w.arm, "{seed}").path),
        start=lambda w: JOBS.start("{seed}"),
        evaluate=lambda w: (
            ["--evaluate", str(FOLDER.path)] if JOBS.evaluates_itself(w.arm) else []
        ),
    shell:
        "exec {params.launch}{params.policygrain} train --config {params.study:q} --arm {wildcards.arm:q}"
        " --seeds {params.seeds:q} --start {params.start:q} --data {params.data:q} --run-dir {params.run_dir:q}"
        " {params.evaluate:q} --done {output:q} 2>>{log:q}"


rule estimators:
    # Gradient estimators against the true gradient, on some initial models.
    input:
        inputs_of("estimators"),
    output:
        JOBS.marker("estimators"),
    log:
        JOBS.log("estimators"),
    # Before training: they take longest, and nothing is left to run beside one that is started last.
    priority: 1
    params:
        **COMMON,
        seeds=seeds_of,
        instrument="estimators",
        start=lambda w: JOBS.start("{seed}"),
        out=lambda w: str(FOLDER.estimators("{seed}")),
    shell:
        "exec {params.policygrain} {params.instrument} --config {params.study:q} --seeds {params.seeds:q}"
        " --start {params.start:q} --data {params.data:q} --out {params.out:q} --done {output:q} >{log:q} 2>&1"


# One round of updates by each method, on some initial models.
use rule estimators as rounds with:
    input:
        inputs_of("rounds"),
    output:
        JOBS.marker("rounds"),
    log:
        JOBS.log("rounds"),
    params:
        **COMMON,
        seeds=seeds_of,
        instrument="rounds",
        start=lambda w: JOBS.start("{seed}"),
        out=lambda w: str(FOLDER.rounds("{seed}")),
