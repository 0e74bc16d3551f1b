"""Models: loading and building them, sequence packing, token log-probabilities and adapters."""

import transformers.utils
import transformers.utils.import_utils
from transformers.utils import logging

# transformers imports scikit-learn (a dependency of MLflow) and SciPy's optimizers for speculative decoding and object
# detection. These imports take two seconds and half a second; replacing these functions prevents them.
transformers.utils.is_sklearn_available = transformers.utils.import_utils.is_sklearn_available = lambda: False
transformers.utils.is_scipy_available = transformers.utils.import_utils.is_scipy_available = lambda: False

# Files of a megabyte need no progress bars.
logging.disable_progress_bar()
