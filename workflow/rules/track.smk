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
        stage("track", log=">")
