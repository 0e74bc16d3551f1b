"""Copies the records of a study to MLflow (`sync`). Nothing is read back from MLflow: the files remain the source."""
