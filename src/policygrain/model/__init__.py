"""Models: building a small one from nothing, loading any, and reading log-probabilities off it."""
