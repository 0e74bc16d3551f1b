"""Reports for people: of a study, and of evaluations; and its copy in MLflow."""
