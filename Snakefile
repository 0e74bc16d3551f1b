# PolicyGrain: data → initial models → training → evaluation → figures and tables → MLflow.
# `snakemake all` runs config.yaml; `snakemake all --configfile studies/NAME.yaml` another study.
from snakemake.settings.enums import Quietness
from snakemake.utils import min_version

min_version("9.0")

if not workflow.config_settings.configfiles:

    configfile: "config.yaml"


report: "workflow/report/study.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"


# A job on a cluster reads the workflow again, for itself alone. What depends on the whole study is left out there.
if workflow.is_main_process:

    include: "workflow/rules/figures.smk"
    include: "workflow/rules/track.smk"
    include: "workflow/rules/targets.smk"


# A dry run ends after the number of jobs of each rule; `snakemake -n -p` lists their commands, `-n --quiet host` their
# reasons.
if (
    workflow.output_settings.dryrun
    and not workflow.output_settings.printshellcmds
    and set(workflow.output_settings.quiet or ()) == {Quietness.HOST, Quietness.REASON}
):
    workflow.output_settings.quiet = {Quietness.RULES, Quietness.PROGRESS}
