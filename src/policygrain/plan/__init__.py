"""The jobs of a study, what they cost, and what a study file, a machine or a cluster lacks for them.

`jobs` lists the jobs, for the Snakefile too; `session` is what Snakemake does before and after them. `check` and
`cluster` are `policygrain check`; `cost`, `shapes` and `tables` are `policygrain plan`.
"""
