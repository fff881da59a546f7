"""One whole round with a model, as `check` makes it: a question, a call, its result, an answer, one more."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass

from wintermute.config.schema import Backend
from wintermute.config.secrets import Redaction
from wintermute.errors import ModelUnavailable
from wintermute.ids import new_id
from wintermute.llm import tokens
from wintermute.llm.backend import Endpoint, offered
from wintermute.llm.failures import Empty, Failed
from wintermute.llm.kept import KEPT
from wintermute.llm.spelled import spelled_calls
from wintermute.llm.tokens import Measure
from wintermute.llm.wire import Answer
from wintermute.messages import Json, Request

PARAMETERS = {"type": "object", "properties": {"answer": {"type": "string"}}}
TOOL = {"name": "done", "description": "Gives the answer.", "parameters": PARAMETERS}
QUESTION = Request(
    ({"role": "user", "content": "Call the tool `done` with the answer: ok"},),
    ({"type": "function", "function": TOOL},),  # without tools, no model is of use here
)
AGAIN = {"role": "user", "content": "Call the tool `done` once more, with the answer: good"}
"""With a call and its result in view, which some servers want back in a form of their own."""
MOST_TOKENS = 256
MOST_STEPS = 3
"""Requests for one question: there are models that never stop calling."""
UNTRIED = "its tool calls were not tried, for it {why}"
THOUGHT = f"did not come to an end in {MOST_TOKENS} tokens"
WORDS = "answered in words where it was told to call a tool"


@dataclass(frozen=True, slots=True)
class Probed:
    """How a backend answered, in one line.

    `spells`: whether it wrote its call as text; None: it called nothing at all. `untried`: why it
    is not known whether its calls work, in words. `measure`: what its server counted.
    """

    told: str
    spells: bool | None
    untried: str
    measure: Measure


async def probe(name: str, backend: Backend, seconds: float) -> Probed:
    """How the backend answered within so many seconds (F-017, F-042).

    Raises: ModelError, which says what to do.
    """
    key = (backend.api_key.reveal(),) if backend.api_key else ()
    endpoint = Endpoint(name, backend, new_id, redact=Redaction(key))
    try:
        async with asyncio.timeout(seconds):
            first, took = await _round(endpoint)
    except Failed as failure:
        raise failure.public(str(failure)) from None
    except TimeoutError:
        raise ModelUnavailable(f"{name} gave no answer in {seconds:g} s") from None
    finally:
        await endpoint.aclose()
    model = first.model if first and first.model else backend.model
    asked = f", asked {endpoint.learnt}" if endpoint.learnt else ""
    told, spells = f"{name} answered in {took:.1f} s (model {model}{asked})", None
    why = THOUGHT if first is None or first.finish_reason == "length" else WORDS
    if first:
        spells = _spells(first)
    untried = "" if spells or (first and first.calls) else UNTRIED.format(why=why)
    return Probed(told, spells, untried, endpoint.measure)


async def _round(endpoint: Endpoint) -> tuple[Answer | None, float]:
    """The first answer and its seconds, after all that follows it: results, a text, a second call."""
    loop, messages, heard = asyncio.get_running_loop(), list[Json](), list[Answer | None]()
    began = took = loop.time()
    for question in (*QUESTION.messages, AGAIN):
        messages.append(question)
        for _ in range(MOST_STEPS):
            answer = await _asked(endpoint, Request(tuple(messages), QUESTION.tools))
            heard.append(answer)
            took = took if heard[1:] else loop.time()
            if not (answer and answer.calls) or any(call.via != "call" for call in answer.calls):
                break
            messages += _shown(answer, endpoint.sender, str(len(messages)))
        if not messages[1:]:
            break
        said = answer.text if answer else ""
        messages.append({"role": "assistant", "content": said or "ok"})
    return heard[0], took - began


async def _asked(endpoint: Endpoint, request: Request) -> Answer | None:
    """Its answer; None where it thought for longer than it may."""
    try:
        answer = await endpoint.ask(request, MOST_TOKENS)
    except Empty:
        return None
    if answer.usage:
        endpoint.measure.learn(tokens.size(request), answer.usage)
    return answer


def _shown(answer: Answer, by: str, turn: str) -> Iterator[Json]:
    """An answer with calls as later requests have it, and a result for each."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": said}}
        for call in answer.calls
        for said in (call.arguments if _is_object(call.arguments) else "{}",)
    ]
    kept = {KEPT: [by, turn, answer.kept]}
    yield {"role": "assistant", "content": answer.text or None, "tool_calls": calls, **kept}
    for call in answer.calls:
        yield {"role": "tool", "tool_call_id": call.id, "content": "done"}


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _spells(answer: Answer) -> bool | None:
    if answer.calls:  # those in the markup of a template are read everywhere
        return False if any(call.via == "call" for call in answer.calls) else None
    return True if spelled_calls(answer.text, offered(QUESTION)) else None
