"""Why one attempt gave no usable answer, and whether another one could.

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
from wintermute.llm.refusals import Complaint, complaint
from wintermute.llm.windows import limit_in
from wintermute.messages import Usage

NOTHING = Usage()
LONGEST_PAUSE = 60.0
LONGEST_WISH = 30.0
"""A Retry-After above this many seconds is a reason to ask another backend, or to give up."""
JITTER = 0.1


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
        complaint: Complaint | None = None,
    ) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.retry_after = retry_after
        """Seconds the server asked us to wait, if it named a time."""
        self.usage = usage
        """What the useless answer cost all the same, if the server said so."""
        self.window = window
        """Tokens the server takes at most, if it said so."""
        self.complaint = complaint
        """The words and codes of the server, where it refused."""

    def told_by(self, name: str, key: str, redact: Callable[[str], str]) -> Self:
        """The same failure with the backend's name, and without secrets."""
        told = f"{name} {self}"
        return type(self)(
            self.outcome,
            redact(told.replace(key, "[secret]") if key else told),
            retry_after=self.retry_after,
            usage=self.usage,
            window=self.window,
            complaint=self.complaint,
        )


class Outage(Failed):
    """Another attempt may succeed."""


class Unreachable(Outage):
    """Nobody is there to be asked (F-036)."""


class QuotaSpent(Outage):
    """Perhaps for now only; without a time to wait for it is final after the retries (F-043)."""


class Empty(Outage):
    """Neither text nor calls."""


class Refused(Failed):
    """Another attempt cannot succeed; a person must change something."""

    public = ModelRefused


class Disallowed(Refused):
    """The content is refused: without what it complains of, a request could succeed (F-038)."""

    public = ContentRefused


class TooLarge(Failed):
    """A shorter request could succeed."""

    public = ContextTooLarge


KINDS: Mapping[str, type[Failed]] = {
    "content": Disallowed,
    "context": TooLarge,
    "pause": QuotaSpent,
    "passing": Outage,
    "error": Outage,
}
"""The kinds of `refusals.toml` that are not simply refused."""


def pause_before(attempt: int, wish: float, chance: float) -> float:
    """Seconds to wait before another attempt after that one (L-034).

    `wish`: of the server; `chance`: from 0 to 1, so that not all come back at once.
    """
    pause = max(wish, min(LONGEST_PAUSE, 2.0 ** (attempt - 1)))
    return pause * (1 + JITTER * chance)


def of_status(status: int, body: str, headers: Mapping[str, str]) -> Failed:
    """The failure that an HTTP answer other than 200 stands for."""
    said = headers.get("location", "nowhere") if 300 <= status < 400 else body
    return _failure(complaint(status, said), headers)


def of_error(error: Any) -> Failed:
    """The failure that an error object inside a 200 answer stands for."""
    status = error.get("code") if isinstance(error, dict) else None
    known = status if isinstance(status, int) and 400 <= status < 600 else 0
    return _failure(complaint(known, error), {})


def _failure(said: Complaint, headers: Mapping[str, str]) -> Failed:
    wish = _retry_after(headers)
    kind: type[Failed] = KINDS.get(said.kind, Refused)
    outcome = f"status_{said.status}" if issubclass(kind, Outage) and said.status else said.kind
    delay = said.delay if wish is None else wish
    is_pause = said.kind == "pause" and delay is not None  # no empty account (F-043)
    return kind(
        outcome,
        replace(said, kind="wait").advice if is_pause else said.advice,
        retry_after=delay,
        window=limit_in(said.text) if kind is TooLarge else None,
        complaint=said,
    )


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
