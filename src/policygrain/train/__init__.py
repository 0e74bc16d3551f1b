"""Training: the loop (`loop.train`), rollouts, updates, checkpoints, ranks and the probe."""
