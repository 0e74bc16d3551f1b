"""Training: the loop (`loop.train`), rollouts, updates, checkpoints and ranks."""
