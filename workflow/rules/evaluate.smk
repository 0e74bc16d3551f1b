rule evaluate:
    # Many models in one engine. Each model's evaluation is written as it is made, so a shard that was stopped does not
    # sample again what it has.
    input:
        inputs_of("evaluate"),
        parts=lambda w: [job.markers[0] for job in JOBS.parts(JOBS.evaluate(w.shard))],
    output:
        JOBS.marker("evaluate"),
    log:
        JOBS.log("evaluate"),
    conda:
        "../../environment.yml"
    params:
        **COMMON,
        models=lambda w: JOBS.models(w.shard),
    shell:
        "exec {params.policygrain} evaluate --config {params.study:q} --data {params.data:q}"
        " --results {params.results:q} --done {output:q} {params.models:q} 2>>{log:q}"


if STUDY.evaluation.parts > 1:

    rule evaluate_part:
        # A part of the responses of a shard's models, sampled by a job of its own and graded by `evaluate`.
        input:
            inputs_of("evaluate_part"),
        output:
            temp(f"{JOBS.marker('evaluate')}.part{{part}}"),
        log:
            str(FOLDER.log("evaluate", "{shard}-{fingerprint}.part{part}")),
        wildcard_constraints:
            part=r"\d+",
        conda:
            "../../environment.yml"
        params:
            **COMMON,
            parts=STUDY.evaluation.parts,
            models=lambda w: JOBS.models(w.shard),
        shell:
            "exec {params.policygrain} evaluate --config {params.study:q} --data {params.data:q}"
            " --results {params.results:q} --part {wildcards.part:q}/{params.parts:q} --done {output:q} {params.models:q}"
            " 2>>{log:q}"
