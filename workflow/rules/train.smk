rule train:
    # Seeds of one arm, one after the other. Run folders are no outputs: Snakemake would delete them before another
    # attempt, and a stopped run could not resume.
    input:
        ancient(TRAINING_DATA),
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
        start=lambda w: (
            str(FOLDER.start("{seed}").path)
            if STUDY.model.start == "tiny" and STUDY.model.warm_start_per_seed
            else start_folder(STUDY.seeds[0])
        ),
    shell:
        "exec {params.launch}{params.policygrain} train --config {params.study:q} --arm {wildcards.arm:q}"
        " --seeds {params.seeds:q} --start {params.start:q} --data {params.data:q} --run-dir {params.run_dir:q}"
        " --done {output:q} 2>>{log:q}"


rule probe:
    # Variance of every ratio and noise of its gradient, on one batch. No model is trained.
    input:
        ancient(TRAINING_DATA),
        start=lambda w: [ancient(path) for path in start_done([int(w.seed)])],
    output:
        done("probe", "seed{seed}", "{fingerprint}"),
    log:
        log_of("probe", "seed{seed}-{fingerprint}"),
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        study=str(FOLDER.study),
        data=lambda w: str(FOLDER.data.path),
        start=lambda w: start_folder(int(w.seed)),
        out=lambda w: str(FOLDER.probe(w.seed)),
    shell:
        "exec {params.policygrain} probe --config {params.study:q} --seed {wildcards.seed:q} --start {params.start:q}"
        " --data {params.data:q} --out {params.out:q} --done {output:q} 2>{log:q}"
