rule track:
    input:
        ancient(FIGURE_FILES),
    output:
        done=TRACKED[0],
        record=TRACKED[1],
    log:
        log_of("track", "track"),
    # MLflow mirrors the records. A server that does not answer loses nothing; run it again.
    localrule: True
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        study=str(FOLDER.study),
        results=lambda w: str(FOLDER.path),
    shell:
        "exec {params.policygrain} track --config {params.study:q} --results {params.results:q} --done {output.done:q}"
        " 2>{log:q}"
