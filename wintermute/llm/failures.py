"""Why one attempt gave no usable answer, and whether another one could.

Private to this folder: `Models` and `probe` turn these into the errors of `wintermute.errors`.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Self

from wintermute.errors import (
    ContentRefused,
    ContextTooLarge,
    ModelError,
    ModelRefused,
    ModelUnavailable,
)
from wintermute.llm.windows import limit_in
from wintermute.messages import Usage
from wintermute.text import clean

NOTHING = Usage()
LONGEST_QUOTE = 300
TOO_LARGE = re.compile(
    r"context_length|context length|context.?size|context.?window|exceeds? the (available )?context"
    r"|n_ctx|(?<!took )too long|too many (input )?tokens|exceeds the maximum number of tokens",
    re.IGNORECASE,
)
TOO_LARGE_500 = "exceed_context_size_error"
"""Some builds of llama.cpp call it an error of theirs."""
NO_TOOLS = re.compile(
    r"(does not|doesn't|not) support (tool|function)|support tool use|tool choice requires"
    r"|tools param requires",
    re.IGNORECASE,
)
NO_SYSTEM = re.compile(
    r"system (role|message|prompt)s? (is |are )?not supported|not support '?(the )?system"
    r"|only user and assistant roles are supported|developer instruction is not enabled",
    re.IGNORECASE,
)
"""How templates and servers say that they know no system message."""
NO_TURNS = re.compile(r"(must|should) (be )?alternat", re.IGNORECASE)
"""And that a person and the model must speak in turn. llama.cpp answers 500 with both."""
QUOTA = re.compile(
    r"insufficient_quota|billing_hard_limit|exceeded your current quota", re.IGNORECASE
)
LONGEST_PAUSE = 60.0
LONGEST_WISH = 30.0
"""A Retry-After above this many seconds is a reason to ask another backend, or to give up."""
JITTER = 0.1
PASSING = frozenset({408, 409, 425, 429})
ADVICE = {
    401: "refuses the key ({status}): check its api_key in config.yaml",
    402: "wants payment ({status}): check the account's plan and billing",
    403: "forbids the request ({status}): check its api_key and what the account may use",
    404: "does not know this model or address ({status}): check its base_url and model in config.yaml",
}


class Failed(Exception):
    """One attempt without a usable answer. `outcome` is one word for the record."""

    public: type[ModelError] = ModelUnavailable

    def __init__(
        self,
        outcome: str,
        reason: str,
        *,
        retry_after: float | None = None,
        usage: Usage = NOTHING,
        window: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.retry_after = retry_after
        """Seconds the server asked us to wait, if it named a time."""
        self.usage = usage
        """What the useless answer cost all the same, if the server said so."""
        self.window = window
        """Tokens the server takes at most, if it said so."""

    def told_by(self, name: str, key: str, redact: Callable[[str], str]) -> Self:
        """The same failure with the backend's name, and without secrets."""
        told = f"{name} {self}"
        return type(self)(
            self.outcome,
            redact(told.replace(key, "[secret]") if key else told),
            retry_after=self.retry_after,
            usage=self.usage,
            window=self.window,
        )


class Outage(Failed):
    """Another attempt may succeed."""


class Unreachable(Outage):
    """Nobody is there to be asked (F-036)."""


class Empty(Outage):
    """Neither text nor calls."""


class Refused(Failed):
    """Another attempt cannot succeed; a person must change something."""

    public = ModelRefused


class Withheld(Refused):
    """The content is refused: without what it complains of, a request could succeed (F-038)."""

    public = ContentRefused


class TooLarge(Failed):
    """A shorter request could succeed."""

    public = ContextTooLarge


def pause_before(attempt: int, wish: float, chance: float) -> float:
    """Seconds to wait before another attempt after that one (L-034).

    `wish`: of the server; `chance`: from 0 to 1, so that not all come back at once.
    """
    pause = max(wish, min(LONGEST_PAUSE, 2.0 ** (attempt - 1)))
    return pause * (1 + JITTER * chance)


def of_status(status: int, body: str, headers: Mapping[str, str]) -> Failed:
    """The failure that an HTTP answer other than 200 stands for."""
    quote = _quote(_decoded(body))
    if QUOTA.search(body):
        return Refused("refused", f"has no quota left ({status}{quote}): check plan and billing")
    if status == 400 and '"code": "content_filter"' in body:
        return Withheld("withheld", f"refuses what the request says ({status}{quote})")
    if status >= 400 and NO_TOOLS.search(body):
        advice = "choose a model that does, in config.yaml, or turn them on in its server"
        return Refused("refused", f"supports no tool calls ({status}{quote}): {advice}")
    if status >= 400 and (refusal := _refusal(body)):
        advice = "choose another chat template in its server"
        return Refused("refused", f"refuses the order of messages ({status}: {refusal}): {advice}")
    if status == 413 or TOO_LARGE_500 in body or (status in {400, 422} and TOO_LARGE.search(body)):
        told = f"finds the request too large ({status}{quote})"
        return TooLarge("context", told, window=limit_in(body))
    if status in PASSING or status >= 500 or "tool_use_failed" in body:
        return Outage(
            f"status_{status}", f"answered {status}{quote}", retry_after=_retry_after(headers)
        )
    if 300 <= status < 400:
        target = _quote(headers.get("location", "nowhere"))
        return Refused("refused", f"redirects ({status}{target}): set base_url to where it leads")
    advice = ADVICE.get(status, "refuses the request ({status}): check its settings in config.yaml")
    return Refused("refused", advice.format(status=f"{status}{quote}"))


def of_error(error: Any) -> Failed:
    """The failure that an error object inside a 200 answer stands for."""
    text = json.dumps(error, ensure_ascii=False, default=str)
    status = error.get("code") if isinstance(error, dict) else None
    if isinstance(status, int) and 400 <= status < 600:
        return of_status(status, text, {})
    if TOO_LARGE.search(text):
        told = f"finds the request too large{_quote(error)}"
        return TooLarge("context", told, window=limit_in(text))
    if refusal := _refusal(text):
        return Refused("refused", f"refuses the order of messages: {refusal}")
    if QUOTA.search(text) or "invalid_api_key" in text:
        return Refused("refused", f"refuses the request{_quote(error)}: check api_key and account")
    return Outage("error", f"answered with an error{_quote(error)}")


def _refusal(text: str) -> str:
    """What a template says of the roles of messages, with a little of what stands around it.

    Servers quote the template before they say it, so its beginning says nothing.
    """
    found = [*NO_SYSTEM.finditer(text), *NO_TURNS.finditer(text)]
    last = max(found, key=re.Match.end, default=None)
    if last is None:
        return ""
    return " ".join(clean(text[max(0, last.start() - 100) : last.end() + 100]).split())


def _decoded(body: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body


def _quote(error: Any) -> str:
    """What the server said, as `: words` in one bounded line, or nothing."""
    if isinstance(error, list) and len(error) == 1:  # Gemini's
        (error,) = error
    for part in ("error", "message", "detail"):
        if isinstance(error, dict) and error.get(part):
            error = error[part]
    words = error if isinstance(error, str) else json.dumps(error, ensure_ascii=False, default=str)
    line = " ".join(clean(words).split())
    return f": {line[:LONGEST_QUOTE]}" if line and not line.startswith("<") else ""


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header; a date is compared with the server's own Date."""
    wanted = headers.get("retry-after", "")
    try:
        seconds = float(wanted)
    except ValueError:
        try:
            until, now = map(parsedate_to_datetime, (wanted, headers.get("date", "")))
            seconds = (until - now).total_seconds()
        except (ValueError, TypeError):  # no date, or one of them without a zone
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
