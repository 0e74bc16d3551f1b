# One script (src/policygrain/figures/NAME.py) and one rule per figure and table; records are all they read. They take
# seconds, so on a cluster they run where Snakemake does: submitting one would take longer than drawing it.
RECORDS = [
    *unique(TRAINED.values()),
    *(f"{RESULTS}/evaluation/{shard}.jsonl" for shard in SHARDS),
    *(f"{RESULTS}/probe/seed{seed}.json" for seed in STUDY.seeds if STUDY.probe),
]

for name in STUDY.figures:

    rule:
        name:
            f"figure_{name}"
        input:
            records=RECORDS,
        output:
            pdf=f"{RESULTS}/figures/{name}.pdf",
            png=report(
                f"{RESULTS}/figures/{name}.png",
                caption=f"../report/{name}.rst",
                category="Figures",
                labels={"figure": name},
            ),
        log:
            f"{RESULTS}/logs/figures/{name}.log",
        localrule: True
        conda:
            "../../environment.yml"
        params:
            policygrain=policygrain,
            study=STUDY_FILE,
            figure=name,
            results=lambda w, output: parent(parent(output[0])),
            out=lambda w, output: output.pdf.removesuffix(".pdf"),
        shell:
            "exec {params.policygrain} figure {params.figure} --config {params.study} --results {params.results}"
            " --out {params.out} 2>{log}"


for name in TABLES:

    rule:
        name:
            f"table_{name}"
        input:
            records=RECORDS,
        output:
            csv=report(
                f"{RESULTS}/tables/{name}.csv",
                caption=f"../report/{name}.rst",
                category="Tables",
                labels={"table": name},
            ),
            md=f"{RESULTS}/tables/{name}.md",
        log:
            f"{RESULTS}/logs/tables/{name}.log",
        localrule: True
        conda:
            "../../environment.yml"
        params:
            policygrain=policygrain,
            study=STUDY_FILE,
            table=lambda w, output: Path(output.csv).stem,
            results=lambda w, output: parent(parent(output[0])),
            out=lambda w, output: output.csv.removesuffix(".csv"),
        shell:
            "exec {params.policygrain} figure {params.table} --config {params.study} --results {params.results}"
            " --out {params.out} 2>{log}"


rule report_page:
    input:
        figures=FIGURE_FILES,
        tracked=f"{RESULTS}/mlflow.json",
        captions=[
            workflow.source_path(f"../report/{name}.rst")
            for name in [*STUDY.figures, *TABLES]
        ],
    output:
        f"{RESULTS}/report.html",
    log:
        f"{RESULTS}/logs/report.log",
    # The study as one page to read and pass on. (`snakemake --report report.zip` makes Snakemake's own, with the jobs.)
    localrule: True
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        study=STUDY_FILE,
        results=lambda w, output: parent(output[0]),
        captions=lambda w, input: parent(input.captions[0]),
    shell:
        "exec {params.policygrain} report --config {params.study} --results {params.results}"
        " --captions {params.captions} --out {output} 2>{log}"
