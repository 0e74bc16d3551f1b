"""The objective and the methods, which are data: parts, presets, the loss. Importing it does not import torch."""

from .method import Method, MtpHeads, Sampler, comparison_names, method, method_names
from .part import Need, needs

__all__ = ["Method", "MtpHeads", "Need", "Sampler", "comparison_names", "method", "method_names", "needs"]
