r"""Extraction of the answer from a response, and the only reader of `\boxed`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from ..errors import UserError, did_you_mean

# A box without braces is read if its content is one number or letter and nothing continues it: `\boxed 5`.
_BRACES = re.compile(
    r"\\(?:boxed|fbox|framebox)\s*\{|[{}]|\\boxed(?:\s*(?P<number>-?\d+(?:\.\d+)?)|\s+(?P<letter>[A-Za-z]))"
    r"(?=\s*(?:$|[$,;)\]]|\.(?!\d)|\\[)\]]|\\text(?![a-z])))"
)
# Text between boxes that are one list: `\boxed{1}$, $\boxed{2}$ \text{ and } x_3 = \boxed{3}`.
_BETWEEN = re.compile(
    r"(?:[\s$,;&*]|\\[,;!()\[\] ]|\\q?quad|\\(?:text|mbox|textnormal)\s*\{[\s,]*(?:and|or)?\s*\}|and|or"
    r"|[A-Za-z](?:_\w|_\{\w+\})?\s*[=:]|\d[.)])*"
)
# Marks of a model's thoughts.
_THOUGHT = re.compile(
    r"(?P<opening><(?:think(?:ing)?|thought|reasoning)>|<\|begin_of_thought\|>|\[THINK\]|◁think▷)"
    r"|</(?:think(?:ing)?|thought|reasoning)>|<\|end_of_thought\|>|\[/THINK\]|◁/think▷"
)
EMPHASIS = re.compile(r"(?<![\w)])(\*{1,3}|`)(?=\S)([^*`\n]+)(?<=\S)\1(?![\w(])")  # of Markdown; not in `2**10`
_ANSWER_LINE = re.compile(r"(?i)answer\s*:\s*([^\n]+)")
_FORMULA = re.compile(r"(?<!\\)\$([^$]+)(?<!\\)\$")
_LAST_NUMBER = re.compile(r"-?\d*\.?\d+")


class Box(NamedTuple):
    """Where the command of a box stands in a text, and where its content begins and ends."""

    start: int
    begin: int
    end: int


def boxed(text: str, list_answer: bool = False) -> str | None:
    r"""The content of the last `\boxed{…}` or `\boxed 5`, or None if there is none or it is not closed.

    With ``list_answer``, and in `(\boxed{1}, \boxed{2})`, together with the boxes adjacent to it.
    """
    found: list[Box] = []
    for box in sorted(all_boxes(text), reverse=True):
        if found and box.end >= found[0].start:
            continue  # it contains the next one
        if found and not _BETWEEN.fullmatch(text, box.end + 1, found[0].start):
            break
        found.insert(0, box)
    if not found:
        return None
    contents = [text[box.begin : box.end] for box in found]
    if list_answer:
        return ", ".join(contents)
    is_pair = len(found) > 1 and text[found[0].start - 1] + text[found[-1].end + 1 : found[-1].end + 2] == "()"
    return f"({', '.join(contents)})" if is_pair else contents[-1]


def all_boxes(text: str) -> list[Box]:
    """All boxes, in one pass over the text; none if the last one is not closed: a response ended in it."""
    if "box" not in text:
        return []
    boxes = []
    stack: list[tuple[int, int] | None] = []  # open braces: (start, begin) of a box, None otherwise
    for match in _BRACES.finditer(text):
        if match.group() == "}":
            if stack and (box := stack.pop()):
                boxes.append(Box(*box, match.start()))
        elif token := match.lastgroup:
            boxes.append(Box(match.start(), match.start(token), match.end()))
        else:
            stack.append((match.start(), match.end()) if len(match.group()) > 1 else None)
    return boxes if max(boxes, default=(-1,)) > max(filter(None, stack), default=(-1,)) else []


def _from_answer_line(text: str, list_answer: bool) -> str | None:
    """DAPO's reward (verl's `math_dapo`): the last line `Answer: …` within the last 300 characters."""
    *_, line = ["", *_ANSWER_LINE.findall(EMPHASIS.sub(r"\2", text[-300:]))]
    content = boxed(line, list_answer)
    if content is None:
        formulas = _FORMULA.findall(line)
        content = formulas[0] if len(formulas) == 1 else line
    return content.strip().removesuffix(".") or None


def _from_answer_tag(text: str, list_answer: bool) -> str | None:
    """The content of the last `<answer>…</answer>`; a box in it counts alone."""
    content = text.rpartition("</answer>")[0].rpartition("<answer>")[2].strip() if "<answer>" in text else ""
    return boxed(content, list_answer) or content or None


def _from_qwen_math(text: str, list_answer: bool) -> str | None:
    """The rules of `extract_answer` in Qwen2.5-Math's evaluation, in its order."""
    text = text.replace("ки", "")
    if "final answer is $" in text and "$. I hope" in text:
        answer = text.split("final answer is $", 1)[1].split("$. I hope", 1)[0]
    elif "boxed" in text:
        answer = _qwen_box(text.rpartition("boxed")[2])
    elif said := next((said for said in ("he answer is", "final answer is") if said in text), None):
        answer = text.rpartition(said)[2]
    elif "答案是" in text:
        answer = text.split("答案是")[1].strip().split("\n\n")[0]
    else:
        *_, answer = ["", *_LAST_NUMBER.findall(text.replace(",", ""))]
    answer = re.sub(r"\n\s*", "", answer.strip()).removeprefix(":")
    return answer.removesuffix(".").removesuffix("/").strip() or None


def _qwen_box(rest: str) -> str:
    """The content of a box; ``rest`` is the text after its command. The end of the text closes an unclosed brace."""
    if not rest.startswith("{"):
        return rest.partition("$")[0].strip()
    text = "\\boxed" + rest
    return next((text[box.begin : box.end] for box in all_boxes(text) if box.start == 0), rest[1:])


PROTOCOLS: dict[str, Callable[[str, bool], str | None]] = {
    "boxed": boxed,
    "answer_line": _from_answer_line,
    "hashes": lambda text, _: text.rpartition("####")[2].partition("\n")[0].strip() or None if "####" in text else None,
    "answer_tag": _from_answer_tag,
    "qwen_math": _from_qwen_math,
}


def check_protocol(protocol: str) -> str:
    if protocol not in PROTOCOLS:
        raise UserError(f"extraction: there is no {protocol!r}.{did_you_mean(protocol, PROTOCOLS)}")
    return protocol


def extract(text: str, protocol: str = "boxed", list_answer: bool = False) -> str | None:
    """The answer in a response (docs/grading.md), or None; there is none if it ended while the model was thinking."""
    *_, last = [None, *_THOUGHT.finditer(text)]
    return None if last and last["opening"] else PROTOCOLS[check_protocol(protocol)](text, list_answer)


def opened(prompt: str) -> str:
    """The mark of a thought with which a prompt ends, so that the response has none; or an empty text."""
    *_, last = [None, *_THOUGHT.finditer(prompt)]
    return last["opening"] or "" if last and not prompt[last.end() :].strip() else ""
