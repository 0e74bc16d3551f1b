# Figures and tables read records alone, see src/policygrain/figures/.
rule figure:
    input:
        settings="results/{study}/settings/figures/{figure}.json",
        records=RECORDS,
    output:
        multiext("results/{study}/figures/{figure}", ".pdf", ".svg"),
        report("results/{study}/figures/{figure}.png", caption="../report/{figure}.rst", category="Figures"),
    log:
        "results/{study}/logs/figures/{figure}.log",
    message:
        "draw {wildcards.figure}"
    shell:
        "exec {POLICYGRAIN} figure {wildcards.figure} --config results/{wildcards.study}/study.yaml > {log:q} 2>&1"


rule tables:
    input:
        settings="results/{study}/settings/tables.json",
        records=RECORDS,
    output:
        report(expand("results/{study}/tables/{table}.csv", table=TABLE_NAMES, allow_missing=True), category="Tables"),
        expand("results/{study}/tables/{table}.{suffix}", table=TABLE_NAMES, suffix=["md", "tex"], allow_missing=True),
    log:
        "results/{study}/logs/tables.log",
    message:
        "write the tables"
    shell:
        "exec {POLICYGRAIN} figure {TABLE_NAMES} --config results/{wildcards.study}/study.yaml > {log:q} 2>&1"


# The study as one page. (`snakemake --report report.zip` makes Snakemake's own, with the jobs.)
rule report_page:
    input:
        settings="results/{study}/settings/report.json",
        figures=FIGURES,
        tables=TABLES,
        captions=[workflow.source_path(f"../report/{name}.rst") for name in [*STUDY.figures, *TABLE_NAMES]],
    output:
        "results/{study}/report.html",
    log:
        "results/{study}/logs/report.log",
    message:
        "write the report"
    shell:
        "exec {POLICYGRAIN} report --config results/{wildcards.study}/study.yaml"
        ' --captions "$(dirname {input.captions[0]:q})"'
        " > {log:q} 2>&1"


# MLflow mirrors the records. A server that does not answer loses nothing; run it again.
rule track:
    input:
        settings="results/{study}/settings/tracking.json",
        records=RECORDS,
    output:
        "results/{study}/mlflow.json",
    log:
        "results/{study}/logs/track.log",
    message:
        "copy the records to MLflow"
    shell:
        "exec {POLICYGRAIN} track --config results/{wildcards.study}/study.yaml > {log:q} 2>&1"
