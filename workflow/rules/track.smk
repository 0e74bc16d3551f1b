rule track:
    input:
        settings="results/{study}/settings/tracking.json",
        records=RECORDS,
        figures=FIGURES,
        tables=TABLES,
    output:
        "results/{study}/mlflow.json",
    log:
        "results/{study}/logs/track.log",
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
    # MLflow mirrors the records. A server that does not answer loses nothing; run it again.
    message:
        "copy the records to MLflow"
    shell:
        "exec {params.policygrain} track --config results/{wildcards.study}/study.yaml > {log:q} 2>&1"
