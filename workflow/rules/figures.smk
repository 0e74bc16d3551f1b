# Figures and tables, see src/policygrain/figures/catalogue.py. They read records alone and take seconds, so on a
# cluster they run where Snakemake does.


rule figure:
    input:
        RECORDS,
    output:
        done=done("figure", "{figure}", FINGERPRINTS.figures()),
        pdf=str(FOLDER.figure("{figure}", ".pdf")),
        svg=str(FOLDER.figure("{figure}", ".svg")),
        png=report(
            str(FOLDER.figure("{figure}", ".png")),
            caption="../report/{figure}.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
    log:
        log_of("figures", "{figure}"),
    wildcard_constraints:
        figure="|".join(STUDY.figures) or "none",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        study=str(FOLDER.study),
        results=lambda w: str(FOLDER.path),
    shell:
        "exec {params.policygrain} figure {wildcards.figure:q} --config {params.study:q} --results {params.results:q}"
        " --done {output.done:q} 2>{log:q}"


rule table:
    input:
        RECORDS,
    output:
        done=done("figure", "{table}", FINGERPRINTS.figures()),
        csv=report(
            str(FOLDER.table("{table}", ".csv")),
            caption="../report/{table}.rst",
            category="Tables",
            labels={"table": "{table}"},
        ),
        md=str(FOLDER.table("{table}", ".md")),
    log:
        log_of("tables", "{table}"),
    wildcard_constraints:
        table="|".join(TABLES),
    localrule: True
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        study=str(FOLDER.study),
        results=lambda w: str(FOLDER.path),
    shell:
        "exec {params.policygrain} figure {wildcards.table:q} --config {params.study:q} --results {params.results:q}"
        " --done {output.done:q} 2>{log:q}"


rule report_page:
    input:
        figures=ancient(FIGURE_FILES),
        tracked=ancient(TRACKED),
        captions=[
            ancient(workflow.source_path(f"../report/{name}.rst"))
            for name in [*STUDY.figures, *TABLES]
        ],
    output:
        done=REPORTED[0],
        report=REPORTED[1],
    log:
        log_of("report", "report"),
    # The study as one page. (`snakemake --report report.zip` makes Snakemake's own, with the jobs.)
    localrule: True
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        study=str(FOLDER.study),
        results=lambda w: str(FOLDER.path),
        captions=lambda w, input: str(Path(input.captions[0]).parent),
    shell:
        "exec {params.policygrain} report --config {params.study:q} --results {params.results:q}"
        " --captions {params.captions:q} --out {output.report:q} --done {output.done:q} 2>{log:q}"
