"""The methods inside other trainers. Each module imports its trainer and nothing of the pipeline."""
