"""Conversion of the rows of a published file to problems, by named functions that registry files combine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..files import json_lines, read_json
from ..grading.extraction import all_boxes
from .problem import Row

if TYPE_CHECKING:
    from .registry import Code, Column, Dataset, Identity


def source_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """(location, row) for each row of a .jsonl, .jsonl.gz, .json (a list) or .parquet file. UserError with the line."""
    if path.suffix == ".parquet":
        import pandas

        try:
            rows = pandas.read_parquet(path).to_dict("records")
        except (OSError, ValueError, ImportError) as error:
            raise UserError(f"{path}: not readable as Parquet: {error}") from error
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows))
    elif path.suffix == ".json":
        yield from ((f"{path}, item {number}", row) for number, row in enumerate(read_json(path), start=1))
    else:
        yield from ((f"{path}, line {number}", row) for number, row in json_lines(path))


def look_up(row: Any, column: str, where: str) -> Any:
    """The value at ``column``; `a.b.0` descends into mappings and lists. UserError with the columns that exist."""
    value = row
    for part in column.split("."):
        try:
            value = value[part] if isinstance(value, Mapping) else value[int(part)]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            there = ", ".join(map(repr, row)) if isinstance(row, Mapping) else type(row).__name__
            raise UserError(f"{where}: no column {column!r}; there is {there}.") from error
    return value


def _text(row: Any, field: Column, where: str) -> str:
    """The converted text of a column, with the white space around it."""
    if field.form is not None:
        try:
            text = field.form.format(**row)
        except (KeyError, IndexError, TypeError) as error:
            raise UserError(f"{where}: {field.form!r} cannot be filled: {error!r}.") from error
    else:
        columns = [field.column] if isinstance(field.column, str) else field.column
        present = [c for c in columns if isinstance(row, Mapping) and c.split(".")[0] in row]
        value = look_up(row, (present or columns)[0], where)
        text = "" if value is None else str(value)
    for name in field.convert:
        text = CONVERSIONS[name](text)
    return text


def _programs(row: Any, code: Code, where: str) -> Row:
    """Tests and entry point; with a signature also the code before the function and the function's head."""
    match = re.search(code.match, _text(row, code.entry_point, where).strip())
    if match is None:
        raise UserError(f"{where}: no entry point is found by {code.match!r}.")
    programs = {"tests": _text(row, code.tests, where), "entry_point": match[1]}
    if code.signature is not None:
        head = _text(row, code.signature, where)
        starts = [m.start() for m in re.finditer(rf"^def {re.escape(match[1])}\b", head, re.MULTILINE)]
        if not starts:
            raise UserError(f"{where}: the signature does not define {match[1]}.")
        programs |= {"setup": head[: starts[-1]], "signature": head[starts[-1] :]}
    return programs


def _identity(row: Any, identity: Identity, number: int, where: str) -> str:
    groups: tuple[str, ...] = ()
    if identity.column is not None:
        text = str(look_up(row, identity.column, where))
        match = re.search(identity.match, text)
        if match is None:
            raise UserError(f"{where}: no id in {identity.column!r}: {text!r}.")
        groups = match.groups()
    return identity.form.format(*groups, row=number)


def convert(dataset: Dataset, files: Iterable[Path]) -> list[Row]:
    """Rows with `id`, `problem`, `answer` and the columns in `fields.keep`. UserError with file and line."""
    fields, left_out = dataset.fields, set(dataset.fields.leave_out)
    rows: list[Row] = []
    sources = (pair for path in files for pair in source_rows(path))
    for number, (where, row) in enumerate(sources):
        if number in left_out:
            continue
        converted = {
            "id": _identity(row, fields.id, number, where),
            "problem": _text(row, fields.problem, where).strip(),
            "answer": _text(row, fields.answer, where).strip(),
            **{name: look_up(row, name, where) for name in fields.keep},
            "source": dataset.name,
            **(_programs(row, dataset.code, where) if dataset.code else {}),
        }
        for key in ("problem", "answer"):
            if not converted[key]:
                raise UserError(f"{where}: the {key} is empty.")
        rows.append(converted)
    return rows


# ---- named conversions of texts, which registry files combine -------------------------------------------------------


def last_boxed(text: str) -> str:
    r"""The argument of the last `\boxed`, in braces or one token as in `\boxed 2`; empty if there is none."""
    start = text.rfind("\\boxed")
    if start < 0:
        return ""
    rest = text[start + len("\\boxed") :].lstrip()
    if rest.startswith("{"):
        return next((text[box.begin : box.end].strip() for box in all_boxes(text) if box.start == start), "")
    token = re.match(r"\\[a-zA-Z]+|[^\\}$]", rest)
    return token[0] if token else ""


def after_hashes(text: str) -> str:
    """GSM8K's final answer: the text after the last ####, without thousands separators."""
    return text.rpartition("####")[2].strip().replace(",", "")


def integer(text: str) -> str:
    """27.0 → 27; text that is not an integer is not changed."""
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
