"""Methods as data: presets and a study's own. Importing it does not import torch."""

from .method import Method, MtpHeads, Sampler
from .presets import method, method_names

__all__ = ["Method", "MtpHeads", "Sampler", "method", "method_names"]
