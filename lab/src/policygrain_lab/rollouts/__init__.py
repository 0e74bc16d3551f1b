"""Rollouts of any trainer: written, read, and measured without a model."""
