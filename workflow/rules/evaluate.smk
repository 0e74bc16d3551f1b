PARTS = STUDY.evaluation.parts


rule evaluate:
    # Many models in one engine. Each model's evaluation is written as it is made, so a shard that was stopped does not
    # sample again what it has.
    input:
        shard_inputs,
        parts=lambda w: [
            f"{done('evaluate', w.shard, w.fingerprint)}.part{number}"
            for number in (range(PARTS) if PARTS > 1 else ())
        ],
    output:
        done("evaluate", "{shard}", "{fingerprint}"),
    log:
        log_of("evaluate", "{shard}-{fingerprint}"),
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        study=str(FOLDER.study),
        data=lambda w: str(FOLDER.data.path),
        results=lambda w: str(FOLDER.path),
        models=lambda w: shard_models(w.shard),
    shell:
        "exec {params.policygrain} evaluate --config {params.study:q} --data {params.data:q}"
        " --results {params.results:q} --done {output:q} {params.models:q} 2>>{log:q}"


if PARTS > 1:

    rule evaluate_part:
        # A part of the responses of a shard's models, sampled by a job of its own and graded by `evaluate`.
        input:
            shard_inputs,
        output:
            temp(f"{done('evaluate', '{shard}', '{fingerprint}')}.part{{part}}"),
        log:
            log_of("evaluate", "{shard}-{fingerprint}.part{part}"),
        wildcard_constraints:
            part=r"\d+",
        conda:
            "../../environment.yml"
        params:
            policygrain=policygrain,
            study=str(FOLDER.study),
            data=lambda w: str(FOLDER.data.path),
            results=lambda w: str(FOLDER.path),
            parts=PARTS,
            models=lambda w: shard_models(w.shard),
        shell:
            "exec {params.policygrain} evaluate --config {params.study:q} --data {params.data:q}"
            " --results {params.results:q} --part {wildcards.part:q}/{params.parts:q} --done {output:q} {params.models:q}"
            " 2>>{log:q}"
