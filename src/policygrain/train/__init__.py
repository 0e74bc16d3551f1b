"""Training: the loop (`loop.train`), the parts of a step, rollouts, updates, checkpoints."""
