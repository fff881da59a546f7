"""How many tokens something may be, for servers that do not tell."""

import json
import math
from dataclasses import dataclass
from typing import Any

from wintermute.db import Database, Transaction
from wintermute.db.values import columns, insert
from wintermute.llm.windows import SURE
from wintermute.llm.wire import Answer
from wintermute.messages import Request, Usage

BYTES_PER_TOKEN = 3
LEAST, MOST = 0.75, 4.0
"""Not lower, for some servers report only the part of a prompt that was not in their cache."""
MEMORY = 0.8
"""How much of the earlier calls counts beside a new one."""
ALIKE, APART = 0.01, 1.25
"""Three requests that are so far apart and are counted so much alike have been cut (F-064)."""
LEAST_WINDOW = 512
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


@dataclass(frozen=True, slots=True)
class Counted:
    """What a server reported, beside our estimates of the same; later requests count more."""

    estimated: float = 0.0
    reported: float = 0.0

    def measured(self, estimated: int) -> int | None:
        """What it would report for something; None: it tells nothing that can be."""
        can_be = SURE * self.estimated <= self.reported <= MOST * self.estimated
        return math.ceil(estimated * self.reported / self.estimated) if self and can_be else None

    def __bool__(self) -> bool:
        return self.estimated > 0


class Measure:
    """What one backend reported, beside our estimates: large requests count more than small ones."""

    def __init__(self) -> None:
        self._doubt = DOUBT
        self.counted = Counted()
        self.most = 0
        """Tokens of the longest request."""
        self._longest: list[int] = []  # our estimates of requests that were counted as that one

    def resume(self, counted: Counted) -> None:
        """Begin with what is known from before."""
        if counted:
            self._doubt, self.counted = 0.0, counted

    @property
    def correction(self) -> float:
        """By how much an estimate is to be multiplied."""
        reported, estimated = self.counted.reported, self.counted.estimated
        return min(MOST, max(LEAST, (reported + self._doubt) / (estimated + self._doubt)))

    @property
    def is_sure(self) -> bool:
        """Whether enough was counted by now to begin with the next time: a template has its share."""
        return self.counted.estimated >= DOUBT

    def corrected(self, estimated: int) -> int:
        """An estimate, corrected."""
        return math.ceil(estimated * self.correction)

    def worst(self, estimated: int) -> int:
        """An estimate, corrected upwards only."""
        return math.ceil(estimated * max(1.0, self.correction))

    @property
    def cut(self) -> int | None:
        """To how many tokens the server cuts a request, as far as has been seen."""
        is_cut = len(self._longest) > 2 and self.most >= LEAST_WINDOW
        return self.most if is_cut else None

    def learn(self, estimated: int, reported: Usage) -> None:
        """Take in what a backend reported for a request."""
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
    """The store of what servers counted, by model and address."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def known(self, model: str, base_url: str) -> Counted:
        """What was counted by now."""
        row = await self._database.row(
            "SELECT estimated, reported FROM models WHERE model = ? AND base_url = ?",
            (model, base_url),
        )
        return Counted(row["estimated"], row["reported"]) if row else Counted()

    async def found(self, tx: Transaction, model: str, base_url: str, counted: Counted) -> None:
        """Keep what was counted now."""
        statement = insert(
            "models",
            {"model": model, "base_url": base_url, **columns(counted)},
            "ON CONFLICT (model, base_url) DO UPDATE SET estimated = excluded.estimated,"
            " reported = excluded.reported",
        )
        tx.later(*statement)
