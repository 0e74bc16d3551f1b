rule train:
    # Seeds of one arm, one after the other. Run folders are no outputs: Snakemake would delete them before another
    # attempt, and a stopped run could not resume.
    input:
        lambda w: ancient(ALL_DATA if evaluates_itself(w.arm) else TRAINING_DATA),
        start=lambda w: [
            ancient(path) for path in start_done(map(int, w.seeds.split("+")))
        ],
    output:
        done("train", "{arm}/{seeds}", "{fingerprint}"),
    log:
        log_of("train", "{arm}/{seeds}-{fingerprint}"),
    conda:
        "../../environment.yml"
    params:
        launch=lambda w, resources: launch(resources),
        policygrain=policygrain,
        study=str(FOLDER.study),
        data=lambda w: str(FOLDER.data.path),
        seeds=lambda w: w.seeds.split("+"),
        run_dir=lambda w: str(FOLDER.run(w.arm, "{seed}").path),
        start=lambda w: start_folder("{seed}"),
        evaluate=lambda w: (
            ["--evaluate", str(FOLDER.path)] if evaluates_itself(w.arm) else []
        ),
    shell:
        "exec {params.launch}{params.policygrain} train --config {params.study:q} --arm {wildcards.arm:q}"
        " --seeds {params.seeds:q} --start {params.start:q} --data {params.data:q} --run-dir {params.run_dir:q}"
        " {params.evaluate:q} --done {output:q} 2>>{log:q}"


rule estimators:
    # Gradient estimators against the true gradient, on some start models.
    input:
        ancient(TRAINING_DATA),
        start=lambda w: [
            ancient(path) for path in start_done(map(int, w.seeds.split("+")))
        ],
    output:
        done("estimators", "seed{seeds}", "{fingerprint}"),
    log:
        log_of("estimators", "seed{seeds}-{fingerprint}"),
    # Before training: they take longest, and nothing is left to run beside one that is started last.
    priority: 1
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        study=str(FOLDER.study),
        data=lambda w: str(FOLDER.data.path),
        seeds=lambda w: w.seeds.split("+"),
        start=lambda w: start_folder("{seed}"),
        out=lambda w: str(FOLDER.estimators("{seed}")),
    shell:
        "exec {params.policygrain} estimators --config {params.study:q} --seeds {params.seeds:q}"
        " --start {params.start:q} --data {params.data:q} --out {params.out:q} --done {output:q} >{log:q} 2>&1"


rule rounds:
    # One round of updates by each method, on some start models.
    input:
        ancient(TRAINING_DATA),
        start=lambda w: [
            ancient(path) for path in start_done(map(int, w.seeds.split("+")))
        ],
    output:
        done("rounds", "seed{seeds}", "{fingerprint}"),
    log:
        log_of("rounds", "seed{seeds}-{fingerprint}"),
    # Before training: they take longest, and nothing is left to run beside one that is started last.
    priority: 1
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        study=str(FOLDER.study),
        data=lambda w: str(FOLDER.data.path),
        seeds=lambda w: w.seeds.split("+"),
        start=lambda w: start_folder("{seed}"),
        out=lambda w: str(FOLDER.rounds("{seed}")),
    shell:
        "exec {params.policygrain} rounds --config {params.study:q} --seeds {params.seeds:q}"
        " --start {params.start:q} --data {params.data:q} --out {params.out:q} --done {output:q} >{log:q} 2>&1"
