"""The last versions of each memories file, to see from which one a saved file comes (F-032).

A version is the set of facts whose lines stood in the file: no text is kept twice, and what is
forgotten is in none of them. What a person saves from an old buffer lacks what was learnt since;
that is no wish to forget it.
"""

import asyncio
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from wintermute import db
from wintermute.db import Database, Transaction

MOST = 20
"""Versions of a file that are told apart."""


@dataclass(frozen=True, slots=True)
class Span:
    """From which version on a line stood in a file, and from which on (None: still) no more.

    `ours`: we wrote it there, not a person.
    """

    key: str
    since: int
    until: int | None
    ours: bool

    def is_in(self, version: int) -> bool:
        """Whether that version has the line."""
        return self.since <= version and (self.until is None or version < self.until)


@dataclass(frozen=True, slots=True)
class KeptLine:
    """A memory that was missing in a saved file and stayed."""

    scope: str
    id: str


def nearest(spans: Collection[Span], names: Collection[str]) -> frozenset[str]:
    """The keys of the version that differs least from a file with these; the newest of equals.

    A file that shares nothing with any of them was written anew: the newest.
    """
    newest = max((span.until or span.since for span in spans), default=0)
    versions = [
        frozenset(span.key for span in spans if span.is_in(number))
        for number in range(newest, max(0, newest - MOST), -1)
    ]
    found = set(names)
    like = [keys for keys in versions if keys & found]
    return min(like or versions[:1], key=lambda keys: len(keys ^ found), default=frozenset())


class Versions:
    """The store of versions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def spans(self, tx: Transaction, scope: str) -> list[Span]:
        """All lines of the last versions of a scope's file."""
        rows = await tx.rows(
            "SELECT f.key, l.since, l.until, l.ours FROM file_lines l JOIN facts f ON f.seq = l.fact"
            " WHERE l.scope = ?",
            (scope,),
        )
        return await asyncio.to_thread(_spans, rows)

    async def found(self, tx: Transaction, scope: str, names: Iterable[str]) -> None:
        """A person saved a file with these lines, by their keys."""
        await self._add(
            tx, scope, "AND key IN (SELECT value FROM json_each(:names))", list(names), ours=0
        )

    async def written(self, tx: Transaction, scope: str) -> None:
        """The file now has exactly the live facts."""
        await self._add(tx, scope, "", [], ours=1)

    async def _add(
        self, tx: Transaction, scope: str, which: str, names: Sequence[str], ours: int
    ) -> None:
        """A version with those of the live facts, unless the newest is the same."""
        row = await tx.row(
            "SELECT max(max(since), coalesce(max(until), 0)) AS n FROM file_lines WHERE scope = ?",
            (scope,),
        )
        newest = int(row["n"] or 0) if row else 0
        values = {"scope": scope, "names": json.dumps(names), "new": newest + 1, "ours": ours}
        there = f"SELECT seq FROM facts WHERE scope = :scope AND valid_to IS NULL {which}"
        await tx.execute(
            "UPDATE file_lines SET until = :new WHERE scope = :scope AND until IS NULL"
            f" AND fact NOT IN ({there})",
            values,
        )
        await tx.execute(
            "INSERT INTO file_lines (scope, fact, since, ours)"
            f" SELECT :scope, seq, :new, :ours FROM ({there}) WHERE seq NOT IN"
            "  (SELECT fact FROM file_lines WHERE scope = :scope AND until IS NULL)",
            values,
        )
        await tx.execute(
            "DELETE FROM file_lines WHERE scope = ? AND until <= ?", (scope, newest + 1 - MOST)
        )

    # What the owner has to know

    async def keep(self, tx: Transaction, ids: Collection[str]) -> None:
        """These facts were missing in a saved file, and stay."""
        await tx.execute(
            "INSERT INTO kept_lines (fact) SELECT seq FROM facts"
            " WHERE id IN (SELECT value FROM json_each(?)) ON CONFLICT DO NOTHING",
            (json.dumps(list(ids)),),
        )

    async def untold(self) -> list[KeptLine]:
        """Those of which the owner was not told; oldest first."""
        rows = await self._database.rows(
            "SELECT f.scope, f.id FROM kept_lines k JOIN facts f ON f.seq = k.fact"
            " WHERE NOT k.told AND f.valid_to IS NULL ORDER BY k.fact"
        )
        return [KeptLine(row["scope"], row["id"]) for row in rows]

    async def tell(self, tx: Transaction, lines: Iterable[KeptLine]) -> None:
        """The owner knows of these: once is enough."""
        await tx.execute(
            "UPDATE kept_lines SET told = 1 WHERE fact IN (SELECT seq FROM facts"
            " WHERE id IN (SELECT value FROM json_each(?)))",
            (json.dumps([line.id for line in lines]),),
        )


def _spans(rows: Iterable[db.Row]) -> list[Span]:
    return [Span(row["key"], row["since"], row["until"], bool(row["ours"])) for row in rows]
