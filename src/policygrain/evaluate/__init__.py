"""Evaluation of models on benchmarks: protocol, sampling, grading and scores."""
