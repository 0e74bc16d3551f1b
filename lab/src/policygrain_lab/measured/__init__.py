"""Initial models of a study, measured: gradient estimators, and one round of updates by each method."""
