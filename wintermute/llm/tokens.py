"""How many tokens something may be, for servers that do not tell."""

import json
import math
from typing import Any

from wintermute.llm.wire import Answer
from wintermute.messages import Request, Usage

BYTES_PER_TOKEN = 3
LEAST, MOST = 0.75, 4.0
"""Not lower, for some servers report only the part of a prompt that was not in their cache."""
MEMORY = 0.8
"""How much of the earlier calls counts beside a new one."""
DOUBT = 1000.0
"""Tokens that are taken to have been estimated rightly before the first call."""


def estimate(value: Any) -> int:
    """Tokens of a text or of the JSON of a value: a third of its bytes, rounded up."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def size(request: Request) -> int:
    """The estimate for a whole request."""
    return estimate([request.messages, request.tools])


def said(answer: Answer) -> int:
    """The estimate for what a model said."""
    return estimate(answer.text + "".join(call.name + call.arguments for call in answer.calls))


def believed(reported: Usage | None, estimated: Usage, window: int) -> Usage:
    """What a server reported, and our estimate for each number that is missing or cannot be.

    Nothing is larger than the window, unless the window is larger than we were told.
    """
    if reported is None:
        return estimated
    tokens_in, tokens_out, cached = reported.tokens_in, reported.tokens_out, reported.tokens_cached
    if not 0 < tokens_in <= max(window, MOST * estimated.tokens_in):
        tokens_in, cached = estimated.tokens_in, 0
    if not 0 < tokens_out <= max(window, MOST * estimated.tokens_out):
        tokens_out = estimated.tokens_out
    return Usage(tokens_in, tokens_out, cached)


class Measure:
    """What one backend reported, beside our estimates: large requests count more than small ones."""

    def __init__(self) -> None:
        self._estimated = DOUBT
        self._reported = DOUBT

    @property
    def correction(self) -> float:
        """By how much an estimate is to be multiplied."""
        return min(MOST, max(LEAST, self._reported / self._estimated))

    def corrected(self, estimated: int) -> int:
        """An estimate, corrected."""
        return math.ceil(estimated * self.correction)

    def worst(self, estimated: int) -> int:
        """An estimate, corrected upwards only."""
        return math.ceil(estimated * max(1.0, self.correction))

    def learn(self, estimated: int, reported: Usage) -> None:
        """Take in what a backend reported for a request."""
        if reported.tokens_in:
            self._estimated = self._estimated * MEMORY + estimated
            self._reported = self._reported * MEMORY + reported.tokens_in
