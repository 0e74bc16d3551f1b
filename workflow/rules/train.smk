rule train:
    # Checkpoints, metrics and the model stay in the run directory, which is no declared output: Snakemake would delete
    # it before another attempt, and a stopped run could not resume. The summary is written last.
    input:
        train=rules.prepare.output.train,
        validation=rules.prepare.output.validation,
        start=lambda w: start_record(int(w.seed)),
    output:
        f"{RESULTS}/runs/{{arm}}/seed{{seed}}/summary.json",
    log:
        f"{RESULTS}/logs/train/{{arm}}/seed{{seed}}.log",
    conda:
        "../../environment.yml"
    params:
        policygrain=POLICYGRAIN,
        study=STUDY_FILE,
        data=lambda w, input: parent(input.train),
        run_dir=lambda w, output: parent(output[0]),
        start=lambda w: start_model(int(w.seed)),
        content=lambda w: run_content(w.arm, w.seed),
    shell:
        "exec {params.policygrain} train --config {params.study} --arm {wildcards.arm} --seed {wildcards.seed}"
        " --start {params.start} --data {params.data} --run-dir {params.run_dir} 2>>{log}"
