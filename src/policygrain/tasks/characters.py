"""The characters of the synthetic problems and of their worked solutions: the vocabulary of a tiny model."""

from __future__ import annotations

import string

PAD, EOS, BOXED = "<|pad|>", "<|end|>", "\\boxed{"
# The order gives the token ids.
CHARACTERS = (PAD, EOS, BOXED, *string.digits, *string.ascii_lowercase, *"+-*/%=<>:;,.?(){}\\ \n")
