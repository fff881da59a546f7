"""The part that every request has, instructions and tools: how many tokens it takes, and who knows."""

import asyncio

from wintermute.config.schema import Backend
from wintermute.config.secrets import Redaction, secret_values
from wintermute.errors import ContextTooLarge, ModelUnavailable
from wintermute.ids import new_id
from wintermute.llm import tokens
from wintermute.llm.backend import Endpoint
from wintermute.llm.failures import Failed, TooLarge
from wintermute.llm.tokens import Counted
from wintermute.llm.windows import FixedPart, Judgement, judged, too_small
from wintermute.messages import Request, Usage


async def counted(name: str, settings: Backend, fixed: Request, seconds: float) -> Counted:
    """What its server counts for one real question for one token, beside our estimate.

    Raises: ContextTooLarge, which says what to do; ModelUnavailable after so many seconds.
    """
    ours = tokens.size(fixed.of(settings.size))
    redact = Redaction(secret_values(settings))
    endpoint = Endpoint(name, settings, new_id, redact=redact)
    usage: Usage | None
    try:
        async with asyncio.timeout(seconds):
            usage = (await endpoint.ask(fixed.of(settings.size), 1)).usage
    except TooLarge as failure:
        raise ContextTooLarge(f"{failure} -> {too_small(name, settings, failure.window)}") from None
    except Failed as failure:  # one token may be too little for an answer, and was counted as well
        usage = failure.usage
    except TimeoutError:
        raise ModelUnavailable(f"{name} did not read its instructions in {seconds:g} s") from None
    finally:
        await endpoint.aclose()
    return Counted(ours, usage.tokens_in if usage else 0)


def known(settings: Backend, fixed: Request, counted: Counted) -> FixedPart:
    """By what a server counted of this or other requests, else by our estimate."""
    ours, other = tokens.size(fixed.of(settings.size)), tokens.size(fixed.of("small"))
    small = other if other != ours else None
    measured = counted.measured(ours)
    if measured is None:
        return FixedPart(ours, small, estimated=True)
    return FixedPart(measured, small and counted.measured(small))


def fits(name: str, settings: Backend, fixed: Request, counted: Counted) -> Judgement:
    """Whether a message fits, by one measure at a start, a reload and in `check` (L-090)."""
    return judged(name, settings, known(settings, fixed, counted))
