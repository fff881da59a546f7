"""JSON in a model's answer: checked before it is used, else refused (A-11, M-072).

A truncated answer, or a copy of the template's example, never changes a store. See `llm.unasked`.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from wintermute.messages import Json, Reply

BEGINS = re.compile(r"[\[{]")
MOST_TRIED = 50
"""The most places in an answer at which a JSON value may begin."""
THE_SAME = 12
"""The least length of a line that counts as copied if the template has it, too."""
PLACEHOLDER = re.compile(r"<([^<>{}/\n]+)>")
MARKS = " -*#>.<\"'"
"""Signs around a line that are ignored when lines are compared."""

T = TypeVar("T")


class InvalidAnswer(Exception):
    """The problem with an answer, in words for the model. Raised by the reader of its JSON.

    `plain`: the same without words of the answer, for logs and the status, as these may be private.
    """

    def __init__(self, told: str, plain: str = "") -> None:
        super().__init__(told)
        self.plain = plain or told


def json_of(reply: Reply, template: str, read: Callable[[Json], T]) -> T:
    """Return the result of `read` for the only object of an answer. Raises: Unfit."""
    if not reply.is_whole:
        raise InvalidAnswer("it was cut off before its end: make it shorter")
    problem, results = InvalidAnswer("it is no JSON"), list[T]()
    for value in reversed(_values(reply.text)):
        try:
            results.append(_checked(value, template, read))
        except InvalidAnswer as unfit:
            problem = unfit
    if len(results) > 1:
        raise InvalidAnswer("it holds two different answers: give one")
    if not results:
        raise problem
    return results[0]


def _values(text: str) -> list[Any]:
    """Return the different JSON values of a text, also within prose and fences (M-094)."""
    decoder, values, at = json.JSONDecoder(), list[Any](), 0
    for _ in range(MOST_TRIED):
        if (begins := BEGINS.search(text, at)) is None:
            break
        try:
            value, at = decoder.raw_decode(text, begins.start())
        except (ValueError, RecursionError):
            at = begins.end()
        else:
            values += [value] if value not in values else []
    return values


def _checked(value: Any, template: str, read: Callable[[Json], T]) -> T:
    if not isinstance(value, dict):
        raise InvalidAnswer("it is no JSON object")
    if any(_copies_template(text, template) for text in _texts(value)):
        raise InvalidAnswer("it repeats the example of the instructions: take what the data say")
    return read(value)


def _copies_template(text: str, template: str) -> bool:
    """Return True if a text has a line or a placeholder of the template's examples."""
    known = _normalised(template)
    blank = {name for name in PLACEHOLDER.findall(known) if f"</{name}>" not in known}
    lines = [line for each in text.splitlines() if (line := _normalised(each).strip(MARKS))]
    return any(line in blank or (len(line) >= THE_SAME and line in known) for line in lines) or any(
        f"<{name}>" in _normalised(text) for name in blank
    )


def text_list(found: Json, name: str) -> tuple[str, ...]:
    """Return an answer's list of texts with this name. Raises: Unfit."""
    value = found.get(name)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidAnswer(f'"{name}" must be a list of texts')
    return tuple(value)


def require_keys(found: Json, *names: str) -> None:
    """Require exactly these names in an answer. Raises: Unfit."""
    if missing := [name for name in names if name not in found]:
        raise InvalidAnswer(f'"{missing[0]}" is missing')
    if more := [name for name in found if name not in names]:
        raise InvalidAnswer(
            f'"{more[0][:40]}" does not belong there', "something in it does not belong there"
        )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _normalised(text: str) -> str:
    return " ".join(text.casefold().split())
