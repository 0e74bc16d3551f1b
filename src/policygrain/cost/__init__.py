"""Cost estimates of a study before anything is submitted: jobs, tokens, device-hours, memory, disk.

`shapes` counts a model's parameters, `loads` turns tokens into operations, seconds and bytes, `workload` adds up the
runs and evaluations of a study, `constants` holds the speed of devices with its source, `estimate` estimates the cost
of the study, `table` prints it, and `measured` compares it with the records of a finished study.
"""
