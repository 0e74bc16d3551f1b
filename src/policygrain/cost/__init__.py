"""What a study costs, before anything is submitted: jobs, tokens, device-hours, memory, disk.

`shapes` counts a model's parameters, `cost` turns tokens into loads and loads into seconds and bytes, `study` adds up
what a study asks for, `constants.yaml` says how fast a device is and who says so, `estimate` writes the bill,
`measured` lays finished records beside it.
"""
