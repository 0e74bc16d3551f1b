rule track:
    # MLflow mirrors the records; a server that is away loses nothing, run it again.
    input:
        study=ancient(STUDY_FILE),
        figures=FIGURE_FILES,
    output:
        f"{RESULTS}/mlflow.done",
    params:
        policygrain=POLICYGRAIN,
        results=RESULTS,
    log:
        f"{RESULTS}/logs/track.log",
    conda:
        "../../environment.yml"
    shell:
        "exec {params.policygrain} track --config {input.study} --results {params.results} --done {output} 2>{log}"
