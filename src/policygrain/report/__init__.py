"""Reports for people: of a study, of evaluations, pages of samples and tokens; and archives of studies."""
