"""Models: building a small one from nothing, loading any, and reading log-probabilities off it."""

import transformers.utils
import transformers.utils.import_utils
from transformers.utils import logging

# transformers imports scikit-learn (which MLflow brings) for a kind of speculative decoding that is never used here:
# two seconds of every short training run. It asks these two names whether to.
transformers.utils.is_sklearn_available = transformers.utils.import_utils.is_sklearn_available = lambda: False

# Bars for files of a megabyte say nothing.
logging.disable_progress_bar()
