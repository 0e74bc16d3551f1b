# PolicyGrain: data → start models → training → evaluation → figures and tables → MLflow.
# `snakemake all` runs config.yaml; `snakemake all --configfile studies/NAME.yaml` another study.
from pathlib import Path

from snakemake.settings.enums import Quietness
from snakemake.utils import min_version

min_version("9.0")

if not workflow.config_settings.configfiles:

    configfile: "config.yaml"


report: "workflow/report/study.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/track.smk"


# Not a rule: every other rule would depend on the whole study, while each depends on its own part of it.
onstart:
    try:
        lock_workflow(FOLDER)
        if not submits_to_slurm():
            wait_for_jobs(FOLDER)
    except UserError as error:
        sys.exit(f"policygrain: {error}")
    write_study()
    show_progress()
    if STUDY.tracking.live:
        follow_in_mlflow()
    if submits_to_slurm():
        report_leftovers(Path.cwd(), own_fingerprints())


onsuccess:
    end_progress()
    if submits_to_slurm():
        cancel_leftovers(Path.cwd(), own_fingerprints())
    exit_if_unfinished()
    if all(Path(path).exists() for path in REPORTED):
        print(f"The report is in {FOLDER.report}.", file=sys.stderr)


onerror:
    end_progress()


localrules:
    all,
    figures,


# A dry run ends after the number of jobs of each rule; `snakemake -n -p` lists their commands, `-n --quiet host` their
# reasons.
if (
    workflow.output_settings.dryrun
    and not workflow.output_settings.printshellcmds
    and set(workflow.output_settings.quiet or ()) == {Quietness.HOST, Quietness.REASON}
):
    workflow.output_settings.quiet = {Quietness.RULES, Quietness.PROGRESS}


rule all:
    default_target: True
    input:
        RECORDS,
        FIGURE_FILES,
        REPORTED,
        TRACKED,


rule figures:
    input:
        RECORDS,
        FIGURE_FILES,
