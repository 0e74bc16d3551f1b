"""Named text conversions that registry files combine, from a published column to a problem or an answer."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..grading.extraction import last_box


def last_boxed(text: str) -> str:
    r"""The argument of the last \boxed, in braces or one token as in `\boxed 2`; empty if there is none."""
    return (last_box(text) or "").strip()


def after_hashes(text: str) -> str:
    """GSM8K's final answer: the text after the last ####, without thousands separators."""
    return text.rpartition("####")[2].strip().replace(",", "")


def integer(text: str) -> str:
    """27.0 → 27; text that is no integer is not changed."""
    return re.sub(r"^([+-]?\d+)\.0+$", r"\1", text.strip())


def strip_dollars(text: str) -> str:
    """Remove a pair of $ that encloses the whole text; `$1$, $2$` is not changed."""
    text = text.strip()
    enclosed = len(text) > 1 and text[0] == text[-1] == "$" and "$" not in text[1:-1]
    return text[1:-1].strip() if enclosed else text


def repair_frac(text: str) -> str:
    r"""Restore `\frac` from form feed + `rac`, which it becomes if its backslash is not escaped in JSON."""
    return text.replace("\x0crac", "\\frac")


def drop_boxed_request(text: str) -> str:
    """Remove a final sentence that asks for steps and a box; the study's prompt says how to answer."""
    request = r"\s*(?:Let's think step by step|Please reason step by step)[^\n]*\\boxed\{\}\.?\s*$"
    return re.sub(request, "", text)


def drop_answer_line_request(text: str) -> str:
    """Remove DAPO-Math-17k's sentences before and after the problem that ask for a last line `Answer: …`."""
    text = re.sub(r"^\s*Solve the following math problem step by step\.[^\n]*\n+", "", text)
    return re.sub(r"\s*Remember to put your answer on its own line after \"Answer:\"\.?\s*$", "", text)


def repair_find_zero_test(text: str) -> str:
    """HumanEval+'s test of task 32 gives the polynomial to the candidate's value instead of the value to it."""
    return text.replace("_poly(*candidate(*inp), inp)", "_poly(*inp, candidate(*inp))")


def type_and_length_first(text: str) -> str:
    """HumanEval+'s and MBPP+'s tests take `[]` for every list of numbers, because np.allclose([], x) is true."""
    close = "assert np.allclose(out, exp, rtol=1e-07, atol=atol)"
    return text.replace(close, f"assert type(out) is type(exp) and np.shape(out) == np.shape(exp)\n        {close}")


def repair_match_test(text: str) -> str:
    """MBPP+'s tests of tasks 737, 787 and 794 compare and assert nothing, so that every program passes."""
    compared = "        exact_match = exp == (out is not None)\n"
    return text.replace(compared, f"{compared}    assert exact_match\n") if "assert " not in text else text


def shorten_combinations_test(text: str) -> str:
    """MBPP+'s test of task 255 asks for 1.7 million combinations of 77 items, a list of gigabytes; here of 7."""
    return re.sub(r"(\]), 7[67]\]", r"\1, 7]", text) if "combinations_colors(*inp)" in text else text


CONVERSIONS: dict[str, Callable[[str], str]] = {
    f.__name__: f
    for f in (
        last_boxed,
        after_hashes,
        integer,
        strip_dollars,
        repair_frac,
        drop_boxed_request,
        drop_answer_line_request,
        repair_find_zero_test,
        type_and_length_first,
        repair_match_test,
        shorten_combinations_test,
    )
}
