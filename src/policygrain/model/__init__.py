"""Models: loading and building them, sequence packing, token log-probabilities and adapters."""

import transformers.utils
from transformers.utils import logging

# This writes docstrings, for which it imports what generates, even for a tokenizer: seven seconds on a slow machine.
transformers.utils.auto_docstring = lambda given=None, **_: given or (lambda given: given)

# Files of a megabyte need no progress bars.
logging.disable_progress_bar()
