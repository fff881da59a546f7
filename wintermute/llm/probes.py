"""Test requests of `check` to a server: a round with calls, and the fixed part of the prompt, to count its tokens."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from wintermute.config.schema import Backend
from wintermute.config.secrets import Redaction, secret_values
from wintermute.errors import ContextTooLarge, KeyRefused, ModelUnavailable
from wintermute.ids import new_id
from wintermute.llm import tokens
from wintermute.llm.backend import Endpoint, offered
from wintermute.llm.context_windows import CUTS, FixedPart, Judgement, judge_fixed_part, too_small
from wintermute.llm.failures import Empty, Failed, TooLarge
from wintermute.llm.provider_fields import PROVIDER_FIELDS
from wintermute.llm.text_tool_calls import json_calls
from wintermute.llm.tokens import Counted
from wintermute.llm.wire import Answer
from wintermute.messages import Json, Request, Usage

PARAMETERS = {"type": "object", "properties": {"answer": {"type": "string"}}}
TOOL = {"name": "done", "description": "Gives the answer.", "parameters": PARAMETERS}
QUESTION = Request(
    ({"role": "user", "content": "Call the tool `done` with the answer: ok"},),
    ({"type": "function", "function": TOOL},),  # without tools, no model is of use here
)
AGAIN = {"role": "user", "content": "Call the tool `done` once more, with the answer: good"}
"""A second question with a call in view, which some servers want back in their own form."""
MOST_TOKENS, MOST_STEPS = 256, 3
"""Limits of one answer, and of the requests for one question: some models never stop."""
THOUGHT = f"; tool calls not tried: it came to no end within {MOST_TOKENS} tokens"
ALOUD = "; it thinks before it answers: an answer shows once the thoughts have ended"
WORDS = "; tool calls not tried: it answered in words where it was told to call a tool"


@dataclass(frozen=True, slots=True)
class Probed:
    """A backend's answer in one line; `warn` if its calls were not tried or it cuts prompts.

    `spells`: it wrote its call as text; None if it made no call. `aloud`: its reasoning ended
    without a beginning; None if it gave no text to tell.
    """

    state: Literal["ok", "warn"]
    report: str
    spells: bool | None
    aloud: bool | None


async def probe(name: str, backend: Backend, seconds: float) -> Probed:
    """Ask the backend, within `seconds` (F-017, F-042).

    Raises: ModelError, which says what to do.
    """
    endpoint, loop = _endpoint(name, backend), asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(seconds):
            answers = await _round(endpoint)
    except Failed as failure:
        refused = KeyRefused if failure.outcome == "key" else failure.public
        raise refused(str(failure)) from None
    except TimeoutError:
        raise ModelUnavailable(f"{name} gave no answer in {seconds:g} s") from None
    finally:
        await endpoint.aclose()
    first, took = answers[0], (loop.time() - began) / len(answers)
    spells, changes = (
        _spells(first),
        f", asked {endpoint.request_changes}" if endpoint.request_changes else "",
    )
    in_words = any(each.text.strip() and each.finish_reason == "stop" for each in answers)
    aloud = endpoint.thinks_aloud or (False if in_words else None)
    report = f"{name} answered in {took:.1f} s (model {first.model or backend.model}{changes})"
    if spells is None and not first.calls:
        report += THOUGHT if first.finish_reason == "length" else WORDS
        return Probed("warn", report, spells, aloud)
    report += ALOUD if aloud else ""
    return Probed("warn" if CUTS in changes else "ok", report, spells, aloud)


async def _round(endpoint: Endpoint) -> list[Answer]:
    """Return all answers: to a question, to the results of its calls, and to a second question."""
    messages, answers = list[Json](), list[Answer]()
    for question in (*QUESTION.messages, AGAIN):
        messages.append(question)
        for _ in range(MOST_STEPS):
            request = Request(tuple(messages), QUESTION.tools)
            try:
                answers.append(await endpoint.ask(request, MOST_TOKENS))
            except Empty as empty:  # the model's reasoning has used up these few tokens
                answers.append(Answer("", (), "length", empty.usage, ""))
            if usage := answers[-1].usage:
                endpoint.measure.learn(tokens.size(request), usage)
            if not all(
                call.via == "call" and call.arguments[:1] == "{" for call in answers[-1].calls
            ):
                return answers
            if not answers[-1].calls:
                break
            messages += _shown(answers[-1], [endpoint.sender, f"{len(messages)}", answers[-1].kept])
        if not messages[1:]:
            break
        messages.append({"role": "assistant", "content": answers[-1].text or "ok"})
    return answers


def _shown(answer: Answer, kept: list[str]) -> Iterator[Json]:
    """Yield an answer with calls in the form of later requests, and a result for each."""
    calls = list[Json]()
    for call in answer.calls:
        function = {"name": call.name, "arguments": call.arguments}
        calls.append({"id": call.id, "type": "function", "function": function})
    yield {
        "role": "assistant",
        "content": answer.text or None,
        "tool_calls": calls,
        PROVIDER_FIELDS: kept,
    }
    yield from (
        {"role": "tool", "tool_call_id": call.id, "content": "done"} for call in answer.calls
    )


def _spells(answer: Answer) -> bool | None:
    if answer.calls:  # calls in a template's tokens are parsed for all models
        return False if any(call.via == "call" for call in answer.calls) else None
    return True if json_calls(answer.text, offered(QUESTION)) else None


def _endpoint(name: str, settings: Backend) -> Endpoint:
    return Endpoint(name, settings, new_id, redact=Redaction(secret_values(settings)))


async def count_fixed_part(name: str, settings: Backend, fixed: Request, seconds: float) -> Counted:
    """Let the server count the tokens of the fixed part, with a request for one token.

    Raises: ContextTooLarge, which says what to do; ModelUnavailable after `seconds`.
    """
    ours = tokens.size(fixed.of(settings.size))
    endpoint = _endpoint(name, settings)
    usage: Usage | None
    try:
        async with asyncio.timeout(seconds):
            usage = (await endpoint.ask(fixed.of(settings.size), 1)).usage
    except TooLarge as failure:
        raise ContextTooLarge(f"{failure} -> {too_small(name, settings, failure.window)}") from None
    except Failed as failure:  # one token may be too few for an answer; it is counted all the same
        usage = failure.usage
    except TimeoutError:
        raise ModelUnavailable(f"{name} did not read its instructions in {seconds:g} s") from None
    finally:
        await endpoint.aclose()
    return Counted(ours, usage.tokens_in if usage else 0)


def known_fixed_part(settings: Backend, fixed: Request, counted: Counted) -> FixedPart:
    """Return the size of the fixed part, by the server's counts if there are any, else estimated."""
    ours, other = tokens.size(fixed.of(settings.size)), tokens.size(fixed.of("small"))
    small = other if other != ours else None
    measured = counted.measured(ours)
    if measured is None:
        return FixedPart(ours, small, estimated=True)
    return FixedPart(measured, small and counted.measured(small))


def fits(name: str, settings: Backend, fixed: Request, counted: Counted) -> Judgement:
    """Judge if a message fits, the same way at a start, a reload and in `check` (L-090)."""
    return judge_fixed_part(name, settings, known_fixed_part(settings, fixed, counted))
