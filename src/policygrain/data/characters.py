"""The characters of the synthetic problems and of their worked solutions: the vocabulary of a tiny model."""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import UserError

if TYPE_CHECKING:
    from ..study.schema import Study
    from .problem import Problem

PAD, EOS, BOXED = "<|pad|>", "<|end|>", "\\boxed{"
# The order gives the token ids.
CHARACTERS = (PAD, EOS, BOXED, *string.digits, *string.ascii_lowercase, *"+-*/%=<>:;,.?(){}\\ \n")


def check_characters(study: Study, problems: Iterable[Problem], where: str) -> None:
    """UserError where a tiny model has no tokens for a problem, its prompt or its answer.

    ``where``: the key that names the problems. All text has tokens in other models, and with `model.tiny.vocabulary`.
    """
    if study.model.start != "tiny" or study.model.tiny.vocabulary is not None:
        return
    for problem in problems:
        key, template = "template", study.prompt.template
        if problem.options.tests:
            key, template = "program", study.prompt.program
        for place, text in (
            (f"prompt.{key}", template.replace("{problem}", "")),
            (f"{where}: {problem.id}", problem.problem + problem.answer),
        ):
            if missing := sorted(set(text).difference(CHARACTERS)):
                raise UserError(
                    f"{place}: the tiny model has no token for {', '.join(map(repr, missing[:5]))}. Set "
                    "model.tiny.vocabulary (512, for example), whose tokens can write any text."
                )
