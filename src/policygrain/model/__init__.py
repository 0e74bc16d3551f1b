"""Models: loading and building them, sequence packing, token log-probabilities and adapters."""

import transformers.utils
import transformers.utils.import_utils
from transformers.utils import logging

# transformers imports scikit-learn (a dependency of MLflow) for a kind of speculative decoding that is not used here.
# The import takes two seconds; replacing these two functions prevents it.
transformers.utils.is_sklearn_available = transformers.utils.import_utils.is_sklearn_available = lambda: False

# Files of a megabyte need no progress bars.
logging.disable_progress_bar()
