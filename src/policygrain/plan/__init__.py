"""The jobs of a study, estimates of their cost, and checks of a study file, a machine or a cluster.

`jobs` lists the jobs, also for the Snakefile; `session` runs before and after Snakemake's jobs. `check` and `cluster`
implement `policygrain check`; `cost`, `shapes` and `tables` implement `policygrain plan`.
"""
