# PolicyGrain: problems → initial models → training → evaluation → figures and tables → report, MLflow.
# `snakemake all` runs config.yaml; `snakemake all --configfile studies/NAME.yaml` another study.


report: "workflow/report/study.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/figures.smk"


# These take seconds, so on a cluster they run where Snakemake does.
localrules:
    all,
    figures,
    prepare,
    benchmarks,
    figure,
    tables,
    report_page,
    track,


rule figures:
    input:
        FIGURES,
        TABLES,


rule all:
    default_target: True
    input:
        RUNS,
        EVALUATIONS,
        rules.figures.input,
        f"results/{STUDY.name}/report.html",
        f"results/{STUDY.name}/mlflow.json",
