"""What a person reads: the report of a study, evaluations and pages of samples and tokens; archives of studies."""
