"""Statistics over records: intervals, comparisons of models and studies, and tests of the papers' claims."""
