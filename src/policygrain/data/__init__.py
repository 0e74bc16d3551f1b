"""Problems: public sets, synthetic families and files; the data of a study, and its prompts."""

from . import coding_sets as coding_sets
from . import mathematics_sets as mathematics_sets  # both register their sets in `sets.SETS`
