"""Statistics over records: intervals, comparisons of models and studies, the claims and what decides them."""
