"""Mirrors the records of a study to MLflow. Nothing is read back from MLflow: the files remain the source."""
