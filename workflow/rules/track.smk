rule track:
    # MLflow mirrors the records. A server that does not answer loses nothing; run it again.
    input:
        ancient(JOBS.track.inputs),
    output:
        done=JOBS.track.markers,
        record=JOBS.track.files,
    log:
        str(FOLDER.log("track", "track")),
    localrule: True
    params:
        **COMMON,
    shell:
        "exec {params.policygrain} track --config {params.study:q} --results {params.results:q} --done {output.done:q}"
        " 2>{log:q}"
