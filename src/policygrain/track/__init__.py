"""MLflow mirrors the records; the files are the truth."""
