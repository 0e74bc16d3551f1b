# Figures and tables, see src/policygrain/figures/catalogue.py. They read records alone and take seconds, so on a
# cluster they run where Snakemake does.
from policygrain.figures import TABLES

FIGURE = JOBS.drawn("figure", "{figure}")
TABLE = JOBS.drawn("table", "{table}")


rule figure:
    input:
        ancient(FIGURE.inputs),
    output:
        done=FIGURE.markers,
        pdf=str(FOLDER.figure("{figure}", ".pdf")),
        svg=str(FOLDER.figure("{figure}", ".svg")),
        png=report(
            str(FOLDER.figure("{figure}", ".png")),
            caption="../report/{figure}.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
    log:
        str(FOLDER.log("figures", "{figure}")),
    wildcard_constraints:
        figure="|".join(STUDY.figures) or "none",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        **COMMON,
    shell:
        stage("figure {wildcards.figure:q}", done="{output.done:q}", log=">")


rule table:
    input:
        ancient(TABLE.inputs),
    output:
        done=TABLE.markers,
        csv=report(
            str(FOLDER.table("{table}", ".csv")),
            caption="../report/{table}.rst",
            category="Tables",
            labels={"table": "{table}"},
        ),
        md=str(FOLDER.table("{table}", ".md")),
    log:
        str(FOLDER.log("tables", "{table}")),
    wildcard_constraints:
        table="|".join(TABLES),
    localrule: True
    conda:
        "../../environment.yml"
    params:
        **COMMON,
    shell:
        stage("figure {wildcards.table:q}", done="{output.done:q}", log=">")


rule report_page:
    # The study as one page. (`snakemake --report report.zip` makes Snakemake's own, with the jobs.)
    input:
        ancient(JOBS.report_page.inputs),
        captions=[
            ancient(workflow.source_path(f"../report/{name}.rst"))
            for name in [*STUDY.figures, *TABLES]
        ],
    output:
        done=JOBS.report_page.markers,
        report=JOBS.report_page.files,
    log:
        str(FOLDER.log("report", "report")),
    localrule: True
    conda:
        "../../environment.yml"
    params:
        **COMMON,
        captions=lambda w, input: str(Path(input.captions[0]).parent),
    shell:
        stage("report --captions {params.captions:q}", done="{output.done:q}", log=">")
