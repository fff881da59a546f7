"""One way to ask a model for JSON: its answer is data, proved before it is used, else refused.

    template ─▶ filled with untagged values ─▶ model ─▶ JSON ─▶ read ─▶ value
                                                ▲        │ cut off, no JSON, wrong shape, an example
                                                ╰─ once ─╯ of the template: told, then refused

Nothing that is shown can close a block of the template, and nothing that a truncated answer says
changes a store (A-11, M-048, M-072).
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from wintermute.errors import AnswerUnusable, EmptyReply
from wintermute.llm.calls import QuestionSources
from wintermute.messages import Json, Reply, Request, Size
from wintermute.templates import fill
from wintermute.text import shortened, untagged

BEGINS = re.compile(r"[\[{]")
MOST_TRIED = 50
"""Places in an answer at which a value may begin."""
ATTEMPTS = 2
"""The question, and once more with what is wrong with its answer (M-072)."""
THE_SAME = 12
"""Characters from which a line that stands in the template was taken from there."""
PLACEHOLDER = re.compile(r"<([^<>{}/\n]+)>")
MARKS = " -*#>.<\"'"
"""Signs around a line that make no other line of it."""
SHOWN = 1_000
"""Of an answer that was of no use."""
AGAIN = "That cannot be used: {error}. Answer once more, with the JSON alone, in the shape that was named."

T = TypeVar("T")


class Unfit(Exception):
    """What is wrong with an answer, in words for the model. Raised by whoever reads its JSON.

    `plain`: the same without words of the answer, which may be anybody's; for logs and a status.
    """

    def __init__(self, told: str, plain: str = "") -> None:
        super().__init__(told)
        self.plain = plain or told


class Unasked(Protocol):
    """Whoever asks models for work that nobody waits for. See `llm.models.Models`."""

    async def ask_unasked(
        self, role: str, request: Request, sources: QuestionSources | None
    ) -> Reply:
        """Raises: ModelError; QuestionWithdrawn."""
        ...

    async def refused(self, role: str, reason: str) -> None:
        """An answer could not be used, not the second one either."""
        ...


class UnaskedModels(Unasked, Protocol):
    """The models as work that nobody waits for asks them: all of them, or those that it may."""

    def window(self, role: str) -> int:
        """Tokens that a request may have."""
        ...

    def sizes(self, role: str) -> tuple[Size, ...]:
        """For which sizes of models a request is needed."""
        ...


async def answer_in_json(
    models: Unasked,
    role: str,
    template: str,
    values: Mapping[str, str],
    read: Callable[[Json], T],
    *,
    attempts: int = ATTEMPTS,
    sources: QuestionSources | None = None,
) -> T:
    """What `read` makes of the object that a model answers with; it is asked at most so often.

    `sources`: what the values are made of. Whoever uses what comes of it asks in its transaction
    whether they stand, for they may have been taken back while the model answered.

    Raises: AnswerUnusable; QuestionWithdrawn; ModelError where no answer came.
    """
    question = fill(template, {name: untagged(value) for name, value in values.items()})
    return await proved_answer(
        *(models, role, question, lambda reply: _read(reply, template, read), AGAIN),
        attempts=attempts,
        sources=sources,
    )


async def proved_answer(
    models: Unasked,
    role: str,
    question: str,
    read: Callable[[Reply], T],
    again: str,
    *,
    attempts: int = ATTEMPTS,
    sources: QuestionSources | None = None,
) -> T:
    """What `read` makes of an answer; where it is Unfit, the model is told so by `again`.

    Raises: as `answer_in_json`.
    """
    messages: tuple[Json, ...] = ({"role": "user", "content": question},)
    plain = ""
    for _ in range(attempts):
        try:
            reply = await models.ask_unasked(role, Request(messages), sources)
        except EmptyReply as problem:
            await models.refused(role, "it is empty")
            raise AnswerUnusable(f"the model answers with nothing: {problem}") from problem
        try:
            return read(reply)
        except Unfit as problem:
            error, plain = str(problem), problem.plain
        messages += (
            {"role": "assistant", "content": shortened(reply.text, SHOWN) or "{}"},
            {"role": "user", "content": again.format(error=error)},
        )
    await models.refused(role, plain)
    raise AnswerUnusable(f"the model's answer cannot be used: {plain}")


def _read(reply: Reply, template: str, read: Callable[[Json], T]) -> T:
    if not reply.is_whole:
        raise Unfit("it was cut off before its end: make it shorter")
    problem, fit = Unfit("it is no JSON"), list[T]()
    for found in reversed(_values(reply.text)):
        try:
            fit.append(_proved(found, template, read))
        except Unfit as unfit:
            problem = unfit
    if len(fit) > 1:
        raise Unfit("it holds two different answers: give one")
    if not fit:
        raise problem
    return fit[0]


def _values(text: str) -> list[Any]:
    """The different JSON values of a text, also within prose and fences (M-094)."""
    decoder, found, at = json.JSONDecoder(), list[Any](), 0
    for _ in range(MOST_TRIED):
        if (begins := BEGINS.search(text, at)) is None:
            break
        try:
            value, at = decoder.raw_decode(text, begins.start())
        except (ValueError, RecursionError):
            at = begins.end()
        else:
            found += [value] if value not in found else []
    return found


def _proved(found: Any, template: str, read: Callable[[Json], T]) -> T:
    if not isinstance(found, dict):
        raise Unfit("it is no JSON object")
    if any(_repeats(said, template) for said in _texts(found)):
        raise Unfit("it repeats the example of the instructions: take what the data say")
    return read(found)


def _repeats(said: str, template: str) -> bool:
    """Whether a line of the template stands in it, or one of the placeholders of its examples."""
    known = _plain(template)
    blank = {name for name in PLACEHOLDER.findall(known) if f"</{name}>" not in known}
    lines = [line for each in said.splitlines() if (line := _plain(each).strip(MARKS))]
    return any(line in blank or (len(line) >= THE_SAME and line in known) for line in lines) or any(
        f"<{name}>" in _plain(said) for name in blank
    )


def texts(found: Json, name: str) -> tuple[str, ...]:
    """A list of texts that an answer has under this name. Raises: Unfit."""
    value = found.get(name)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise Unfit(f'"{name}" must be a list of texts')
    return tuple(value)


def only(found: Json, *names: str) -> None:
    """An answer has these and nothing else. Raises: Unfit."""
    if missing := [name for name in names if name not in found]:
        raise Unfit(f'"{missing[0]}" is missing')
    if more := [name for name in found if name not in names]:
        raise Unfit(
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


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
