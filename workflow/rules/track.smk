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
    conda:
        "../../environment.yml"
    params:
        **COMMON,
    shell:
        stage("track", done="{output.done:q}", log=">")
