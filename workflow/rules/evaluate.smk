rule evaluate:
    # Many checkpoints in one engine. Each model's records are kept beside it as they are made, so a shard that was
    # stopped does not sample again what it has.
    input:
        unpack(shard_inputs),
        parts=shard_parts,
    output:
        f"{RESULTS}/evaluation/{{shard}}.jsonl",
    log:
        f"{RESULTS}/logs/evaluate/{{shard}}.log",
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        study=STUDY_FILE,
        data=lambda w, input: parent(parent(input.benchmarks[0])),
        models=model_arguments,
        content=[
            STUDY.evaluation.model_dump(exclude={"parts", "runs_per_engine"}),
            STUDY.grader,
        ],
    shell:
        "exec {params.policygrain} evaluate --config {params.study} --data {params.data} --out {output}"
        " {params.models} 2>>{log}"


if PARTS > 1:

    rule evaluate_part:
        # A share of the responses of a shard's models, in a job of its own. They lie beside the models, which are no
        # outputs; what is declared says that they are there, and goes when they have been judged.
        input:
            unpack(shard_inputs),
        output:
            temp(touch(f"{RESULTS}/evaluation/{{shard}}.part{{part}}")),
        log:
            f"{RESULTS}/logs/evaluate/{{shard}}.part{{part}}.log",
        conda:
            "../../environment.yml"
        params:
            policygrain=policygrain,
            study=STUDY_FILE,
            data=lambda w, input: parent(parent(input.benchmarks[0])),
            out=lambda w, output: f"{parent(output[0])}/{w.shard}.jsonl",
            parts=PARTS,
            models=model_arguments,
            content=STUDY.evaluation.model_dump(),
        shell:
            "exec {params.policygrain} evaluate --config {params.study} --data {params.data} --out {params.out}"
            " --part {wildcards.part}/{params.parts} {params.models} 2>>{log}"
