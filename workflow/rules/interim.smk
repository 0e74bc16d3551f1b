checkpoint interim:
    # Which claims are decided, and which arms get more seeds. Reads records alone. The jobs behind it are known when it has
    # ended, so a dry run shows only those that were planned.
    input:
        lambda w: records(before=int(w.number)),
    output:
        done("interim", "{number}", "{fingerprint}"),
    log:
        log_of("interim", "{number}-{fingerprint}"),
    localrule: True
    conda:
        "../../environment.yml"
    params:
        policygrain=policygrain,
        results=lambda w: str(FOLDER.path),
    shell:
        "exec {params.policygrain} interim {params.results:q} --number {wildcards.number:q} --done {output:q} 2>{log:q}"
