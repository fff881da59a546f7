"""Token estimates, corrected by the counts that servers report."""

import json
import math
from dataclasses import dataclass
from typing import Any

from wintermute.db import Database, Transaction
from wintermute.db.values import columns, insert
from wintermute.llm.context_windows import SURE
from wintermute.llm.wire import Answer
from wintermute.messages import Request, Usage

BYTES_PER_TOKEN = 3
LEAST, MOST = 0.75, 4.0
"""Limits of the correction. Not lower: some servers report only the uncached part of a prompt."""
MEMORY = 0.8
"""The weight of the earlier calls with each new one."""
ALIKE, APART = 0.01, 1.25
"""Three requests that differ this much in size, with counts this similar, were cut (F-064)."""
LEAST_WINDOW = 512
DOUBT = 1000.0
"""Tokens that are taken as estimated correctly before the first call."""


def estimate(value: Any) -> int:
    """Estimate the tokens of a text, or of a value's JSON: a third of its bytes, rounded up."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def size(request: Request) -> int:
    """Estimate the tokens of a whole request."""
    return estimate([request.messages, request.tools])


def answer_size(answer: Answer) -> int:
    """Estimate the tokens of a model's answer."""
    return estimate(answer.text + "".join(call.name + call.arguments for call in answer.calls))


def plausible_usage(reported: Usage | None, estimated: Usage, window: int) -> Usage:
    """Return the reported usage, with our estimate for each number that is missing or impossible.

    A number larger than the window is impossible, unless the window is larger than configured.
    """
    if reported is None:
        return estimated
    tokens_in, tokens_out, cached = reported.tokens_in, reported.tokens_out, reported.tokens_cached
    if not 0 < tokens_in <= max(window, MOST * estimated.tokens_in):
        tokens_in, cached = estimated.tokens_in, 0
    if not 0 < tokens_out <= max(window, MOST * estimated.tokens_out):
        tokens_out = estimated.tokens_out
    return Usage(tokens_in, tokens_out, cached)


@dataclass(frozen=True, slots=True)
class Counted:
    """Sums of a server's reported tokens and of our estimates for them; later requests weigh more."""

    estimated: float = 0.0
    reported: float = 0.0

    def measured(self, estimated: int) -> int | None:
        """Convert an estimate to the server's count; None if its counts are implausible."""
        can_be = SURE * self.estimated <= self.reported <= MOST * self.estimated
        return math.ceil(estimated * self.reported / self.estimated) if self and can_be else None

    def __bool__(self) -> bool:
        return self.estimated > 0


class Measure:
    """Token counts of one backend and our estimates for them: large requests count more than small ones."""

    def __init__(self) -> None:
        self._doubt = DOUBT
        self.counted = Counted()
        self.most = 0
        """Tokens of the longest request."""
        self._longest: list[int] = []  # estimates of requests with the same count as the longest

    def resume(self, counted: Counted) -> None:
        """Begin with the stored counts."""
        if counted:
            self._doubt, self.counted = 0.0, counted

    @property
    def correction(self) -> float:
        """The factor for estimates."""
        reported, estimated = self.counted.reported, self.counted.estimated
        return min(MOST, max(LEAST, (reported + self._doubt) / (estimated + self._doubt)))

    @property
    def is_sure(self) -> bool:
        """True if enough was counted to store it: a template has a share of its own."""
        return self.counted.estimated >= DOUBT

    def corrected(self, estimated: int) -> int:
        """Return a corrected estimate."""
        return math.ceil(estimated * self.correction)

    def worst(self, estimated: int) -> int:
        """Return an estimate, corrected upwards only."""
        return math.ceil(estimated * max(1.0, self.correction))

    @property
    def cut(self) -> int | None:
        """The tokens to which the server cuts requests; None if it has not been seen to cut."""
        is_cut = len(self._longest) > 2 and self.most >= LEAST_WINDOW
        return self.most if is_cut else None

    def learn(self, estimated: int, reported: Usage) -> None:
        """Add the usage that a backend reported for a request."""
        if reported.tokens_in:
            if reported.tokens_in > self.most * (1 + ALIKE):
                self.most, self._longest = reported.tokens_in, []
            if reported.tokens_in >= self.most * (1 - ALIKE) and all(
                max(one, estimated) >= APART * min(one, estimated) for one in self._longest
            ):
                self._longest.append(estimated)
            known = self.counted
            self._doubt *= MEMORY
            self.counted = Counted(
                known.estimated * MEMORY + estimated, known.reported * MEMORY + reported.tokens_in
            )


class TokenCounts:
    """The store of servers' token counts, by model and address."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def known(self, model: str, base_url: str) -> Counted:
        """Return the stored counts."""
        row = await self._database.row(
            "SELECT estimated, reported FROM models WHERE model = ? AND base_url = ?",
            (model, base_url),
        )
        return Counted(row["estimated"], row["reported"]) if row else Counted()

    async def found(self, tx: Transaction, model: str, base_url: str, counted: Counted) -> None:
        """Store the counts."""
        statement = insert(
            "models",
            {"model": model, "base_url": base_url, **columns(counted)},
            "ON CONFLICT (model, base_url) DO UPDATE SET estimated = excluded.estimated,"
            " reported = excluded.reported",
        )
        tx.defer(*statement)
