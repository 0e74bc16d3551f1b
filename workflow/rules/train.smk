rule train:
    # Seeds of one arm, one after the other. Run directories are no declared outputs: Snakemake would delete them before
    # another attempt, and a stopped run could not resume. What is declared is the list that is written last.
    input:
        train=rules.prepare.output.train,
        validation=rules.prepare.output.validation,
        start=lambda w: start_records(seeds_of(w.seeds)),
    output:
        f"{RESULTS}/runs/{{arm}}/trained-{{seeds}}.json",
    log:
        f"{RESULTS}/logs/train/{{arm}}/{{seeds}}.log",
    conda:
        "../../environment.yml"
    params:
        launch=lambda w, resources: launch(resources),
        policygrain=policygrain,
        study=STUDY_FILE,
        data=lambda w, input: parent(input.train),
        seeds=lambda w: seeds_of(w.seeds),
        run_dir=lambda w, output: f"{RESULTS}/runs/{w.arm}/seed{{seed}}",
        start=lambda w: START_MODEL,
        content=lambda w: [run_content(w.arm, seed) for seed in seeds_of(w.seeds)],
    shell:
        "exec {params.launch}{params.policygrain} train --config {params.study} --arm {wildcards.arm}"
        " --seeds {params.seeds} --start '{params.start}' --data {params.data} --run-dir '{params.run_dir}' --done {output} 2>>{log}"


rule probe:
    # Every ratio on one batch: how far ratios spread and how noisy gradients are. Nothing is trained by it.
    input:
        train=rules.prepare.output.train,
        start=lambda w: start_records([int(w.seed)]),
    output:
        f"{RESULTS}/probe/seed{{seed}}.json",
    log:
        f"{RESULTS}/logs/probe/seed{{seed}}.log",
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        study=STUDY_FILE,
        data=lambda w, input: parent(input.train),
        start=lambda w: start_model(int(w.seed)),
        content=[
            STUDY.probe and STUDY.probe.model_dump(),
            STUDY.training.model_dump(),
            STUDY.prompt.model_dump(),
        ],
    shell:
        "exec {params.policygrain} probe --config {params.study} --seed {wildcards.seed} --start {params.start}"
        " --data {params.data} --out {output} 2>{log}"
