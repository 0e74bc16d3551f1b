rule train:
    # Seeds of one arm, one after the other. Run directories are no declared outputs: Snakemake would delete them before
    # another attempt, and a stopped run could not resume. What is declared is the list that is written last.
    input:
        train=rules.prepare.output.train,
        validation=rules.prepare.output.validation,
        start=lambda w: [start_record(seed) for seed in seeds_of(w.seeds)],
    output:
        f"{RESULTS}/runs/{{arm}}/trained-{{seeds}}.json",
    log:
        f"{RESULTS}/logs/train/{{arm}}/{{seeds}}.log",
    conda:
        "../../environment.yml"
    params:
        policygrain=POLICYGRAIN,
        study=STUDY_FILE,
        data=lambda w, input: parent(input.train),
        seeds=lambda w: seeds_of(w.seeds),
        run_dir=lambda w, output: f"{parent(output[0])}/seed{{seed}}",
        start=lambda w: START_MODEL,
        content=lambda w: [run_content(w.arm, seed) for seed in seeds_of(w.seeds)],
    shell:
        "exec {params.policygrain} train --config {params.study} --arm {wildcards.arm} --seeds {params.seeds}"
        " --start '{params.start}' --data {params.data} --run-dir '{params.run_dir}' --done {output} 2>>{log}"
