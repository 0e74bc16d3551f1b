rule track:
    input:
        FIGURE_FILES,
    output:
        str(FOLDER.tracking),
    log:
        log_of("track", "track"),
    # MLflow mirrors the records. A server that does not answer loses nothing; run it again.
    localrule: True
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        study=str(FOLDER.study),
        results=str(FOLDER.path),
        fingerprint=FINGERPRINTS.tracking(),
    shell:
        "exec {params.policygrain} track --config {params.study:q} --results {params.results:q} --done {output:q}"
        " 2>{log:q}"
