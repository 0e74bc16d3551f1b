"""Methods as data: presets and a user's own, each a point in the space of the objective's parts."""

from .presets import method, method_names, preset_data
from .spec import Method

__all__ = ["Method", "method", "method_names", "preset_data"]
