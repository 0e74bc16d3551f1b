"""Training runs, each by the trainer that its study names: the loop of `train/`, TRL or verl."""
