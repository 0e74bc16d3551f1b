# What a call makes, and what Snakemake does before and after it.
from policygrain.commands.session import Session, check_cores

check_cores(workflow.resource_settings)
SESSION = Session(workflow, JOBS)


# Not a rule: every other rule would depend on the whole study, while each depends on its own part of it.
onstart:
    SESSION.start()


onsuccess:
    SESSION.succeed()


onerror:
    SESSION.end()


localrules:
    all,
    figures,


rule all:
    default_target: True
    input:
        ancient(JOBS.records),
        JOBS.figure_files,
        JOBS.report_page.outputs,
        JOBS.track.outputs,


rule figures:
    input:
        ancient(JOBS.records),
        JOBS.figure_files,
