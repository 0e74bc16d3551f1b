rule track:
    # MLflow mirrors the records; a server that is away loses nothing, run it again.
    input:
        study=ancient(STUDY_FILE),
        figures=FIGURE_FILES,
    output:
        f"{RESULTS}/mlflow.done",
    log:
        f"{RESULTS}/logs/track.log",
    conda:
        "../../environment.yml"
    params:
        policygrain=POLICYGRAIN,
        results=lambda w, output: parent(output[0]),
    shell:
        "exec {params.policygrain} track --config {input.study} --results {params.results} --done {output} 2>{log}"
