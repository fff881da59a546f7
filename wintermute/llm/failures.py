"""Failed attempts: their reasons, and whether another attempt could succeed.

Private to this folder: `Models` and `probe` turn these into the errors of `wintermute.errors`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any, Self

from wintermute.errors import (
    ContentRefused,
    ContextTooLarge,
    ModelError,
    ModelRefused,
    ModelUnavailable,
)
from wintermute.llm.context_windows import limit_in
from wintermute.llm.refusals import Complaint, complaint
from wintermute.messages import Usage

NOTHING = Usage()
LONGEST_PAUSE = 60.0
LONGEST_RETRY_AFTER = 30.0
"""The longest Retry-After, in seconds, to wait for instead of asking another backend."""
JITTER = 0.1


class Failed(Exception):
    """A failed attempt. `outcome` is one word for the record."""

    public: type[ModelError] = ModelUnavailable

    def __init__(
        self,
        outcome: str,
        reason: str,
        *,
        retry_after: float | None = None,
        usage: Usage = NOTHING,
        window: int | None = None,
        complaint: Complaint | None = None,
    ) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.retry_after = retry_after
        """Seconds that the server asked us to wait, if any."""
        self.usage = usage
        """The cost of the useless answer, if the server reported it."""
        self.window = window
        """The most tokens that the server takes, if it said so."""
        self.complaint = complaint
        """The words and codes of the server, if it refused."""

    def naming_backend(self, name: str, key: str, redact: Callable[[str], str]) -> Self:
        """Return the same failure with the backend's name, and without secrets."""
        text = f"{name} {self}"
        return type(self)(
            self.outcome,
            redact(text.replace(key, "[secret]") if key else text),
            retry_after=self.retry_after,
            usage=self.usage,
            window=self.window,
            complaint=self.complaint,
        )


class Outage(Failed):
    """A failure after which another attempt may succeed."""


class Unreachable(Outage):
    """A server that refuses connections (F-036)."""


class QuotaSpent(Outage):
    """A used-up quota, perhaps only for now;

    final after the retries if the server names no time (F-043).
    """


class Empty(Outage):
    """An answer with neither text nor calls."""


class Refused(Failed):
    """A failure after which another attempt cannot succeed; a person must change something."""

    public = ModelRefused


class Disallowed(Refused):
    """A refusal because of content: a request without that part could succeed (F-038)."""

    public = ContentRefused


class TooLarge(Failed):
    """A request that the server refuses as too large; a shorter one could succeed."""

    public = ContextTooLarge


KINDS: Mapping[str, type[Failed]] = {
    "content": Disallowed,
    "context": TooLarge,
    "pause": QuotaSpent,
    "passing": Outage,
    "error": Outage,
}
"""The failures for kinds of `refusals.toml` that are not simply refused."""


def pause_before(attempt: int, wish: float, chance: float) -> float:
    """Return the seconds to wait before the next attempt after this one (L-034).

    `wish`: the server's Retry-After; `chance`: from 0 to 1, so that not all clients come back at
    once.
    """
    pause = max(wish, min(LONGEST_PAUSE, 2.0 ** (attempt - 1)))
    return pause * (1 + JITTER * chance)


def of_status(status: int, body: str, headers: Mapping[str, str]) -> Failed:
    """Return the failure for an HTTP answer other than 200."""
    text = headers.get("location", "nowhere") if 300 <= status < 400 else body
    return _failure(complaint(status, text), headers)


def of_error(error: Any) -> Failed:
    """Return the failure for an error object inside a 200 answer."""
    status = error.get("code") if isinstance(error, dict) else None
    known = status if isinstance(status, int) and 400 <= status < 600 else 0
    return _failure(complaint(known, error), {})


def _failure(found: Complaint, headers: Mapping[str, str]) -> Failed:
    wish = _retry_after(headers)
    error: type[Failed] = KINDS.get(found.kind, Refused)
    outcome = f"status_{found.status}" if issubclass(error, Outage) and found.status else found.kind
    delay = found.delay if wish is None else wish
    # A rate limit, not an empty account (F-043).
    is_pause = found.kind == "pause" and delay is not None
    return error(
        outcome,
        replace(found, kind="wait").advice if is_pause else found.advice,
        retry_after=delay,
        window=limit_in(found.text) if error is TooLarge else None,
        complaint=found,
    )


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header; a date is compared with the server's own Date."""
    header = headers.get("retry-after", "")
    try:
        seconds = float(header)
    except ValueError:
        try:
            until, now = map(parsedate_to_datetime, (header, headers.get("date", "")))
            seconds = (until - now).total_seconds()
        except (ValueError, TypeError):  # no date, or one without a time zone
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
