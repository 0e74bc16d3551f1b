"""Methods as data: presets and a study's own. Importing it does not import torch."""

from .method import Method
from .presets import method, method_names
from .schema import MethodChanges, MtpHeads, Sampler

__all__ = ["Method", "MethodChanges", "MtpHeads", "Sampler", "method", "method_names"]
