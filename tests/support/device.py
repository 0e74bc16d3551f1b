"""Where tests place models and tensors: the device that the program computes on."""

from policygrain.model.device import device

PLACE = device()
