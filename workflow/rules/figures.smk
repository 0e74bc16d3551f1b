# One module (src/policygrain/figures/NAME.py) and one rule per figure and table. They read records alone and take
# seconds, so on a cluster they run where Snakemake does.

for name in STUDY.figures:

    rule:
        name:
            f"figure_{name}"
        input:
            lambda w: records(),
        output:
            done=done("figure", name, FINGERPRINTS.figures()),
            pdf=str(FOLDER.figure(name, ".pdf")),
            png=report(
                str(FOLDER.figure(name, ".png")),
                caption=f"../report/{name}.rst",
                category="Figures",
                labels={"figure": name},
            ),
        log:
            log_of("figures", name),
        localrule: True
        conda:
            "../../environment.yml"
        params:
            policygrain=policygrain,
            study=str(FOLDER.study),
            results=lambda w: str(FOLDER.path),
            figure=name,
        shell:
            "exec {params.policygrain} figure {params.figure:q} --config {params.study:q} --results {params.results:q}"
            " --done {output.done:q} 2>{log:q}"


for name in TABLES:

    rule:
        name:
            f"table_{name}"
        input:
            lambda w: records(),
        output:
            done=done("figure", name, FINGERPRINTS.figures()),
            csv=report(
                str(FOLDER.table(name, ".csv")),
                caption=f"../report/{name}.rst",
                category="Tables",
                labels={"table": name},
            ),
            md=str(FOLDER.table(name, ".md")),
        log:
            log_of("tables", name),
        localrule: True
        conda:
            "../../environment.yml"
        params:
            policygrain=policygrain,
            study=str(FOLDER.study),
            results=lambda w: str(FOLDER.path),
            # A function, since the name of the table `results` looks like a path to the linter.
            table=lambda w, name=name: name,
        shell:
            "exec {params.policygrain} figure {params.table:q} --config {params.study:q} --results {params.results:q}"
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
