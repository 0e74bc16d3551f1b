"""Training: ``loop.train`` reads from top to bottom; what it calls is beside it."""
