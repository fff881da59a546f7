"""The part that every request has, instructions and tools: how many tokens it takes, and who knows."""

import asyncio
from collections.abc import Sequence

from wintermute.config.schema import Backend
from wintermute.config.secrets import Redaction
from wintermute.errors import ContextTooLarge, ModelUnavailable
from wintermute.ids import new_id
from wintermute.llm import tokens
from wintermute.llm.backend import Endpoint
from wintermute.llm.failures import Failed, TooLarge
from wintermute.llm.windows import FixedPart, too_small
from wintermute.messages import Request, Usage


async def counted(name: str, settings: Backend, fixed: Request, seconds: float) -> FixedPart:
    """By one real question for one token, where its server tells a number that can be.

    Raises: ContextTooLarge, which says what to do; ModelUnavailable after so many seconds.
    """
    estimated = FixedPart.estimated(tokens.size(fixed.of(settings.size)))
    key = (settings.api_key.reveal(),) if settings.api_key else ()
    endpoint = Endpoint(name, settings, new_id, redact=Redaction(key))
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
    reported = usage.tokens_in if usage else 0
    return FixedPart(reported, reported) if _can_be(reported, estimated) else estimated


def known(settings: Backend, fixed: Request, lately: Sequence[int]) -> FixedPart:
    """Without asking: by our estimate, or by the smallest of the last questions, which had more."""
    estimated = FixedPart.estimated(tokens.size(fixed.of(settings.size)))
    had = [asked for asked in lately if asked >= estimated.least]
    return FixedPart(min([*had, estimated.tokens]), estimated.least)


def _can_be(reported: int, estimated: FixedPart) -> bool:
    """Whether a server counts what it was asked: some tell only what they had not read before."""
    return estimated.tokens / tokens.MOST <= reported <= estimated.tokens * tokens.MOST
