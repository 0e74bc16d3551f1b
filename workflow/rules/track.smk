rule track:
    input:
        figures=FIGURE_FILES,
    output:
        f"{RESULTS}/mlflow.json",
    log:
        f"{RESULTS}/logs/track.log",
    # MLflow mirrors the records; a server that is away loses nothing, run it again.
    localrule: True
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        study=STUDY_FILE,
        results=lambda w, output: parent(output[0]),
    shell:
        "exec {params.policygrain} track --config {params.study} --results {params.results} --done {output} 2>{log}"
