"""Nights: each run of the nightly work, phase by phase, and its reports.

The results and questions of a night are decisions, `NIGHT#N`, numbered over all scopes.
"""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Literal

from wintermute.changes.change_sets import KEPT
from wintermute.changes.decisions import FORGOTTEN, WEEK, Decision, Decisions
from wintermute.clock import Clock, stamp
from wintermute.db import Database, Transaction
from wintermute.db.text_search import GONE, OURS_SINCE, SCOPES, SearchableText
from wintermute.db.values import columns, insert, reader

Occasion = Literal["schedule", "late", "asked", "command"]
"""Reason for a night: its time came, it was missed, somebody asked in a chat, or at the command line."""
PhaseStatus = Literal["running", "ok", "failed", "left"]
"""`left`: there is more to do than this night may; the next night continues."""
REMEMBERED = timedelta(days=365)
"""Time for which asked questions are remembered."""

NOTES = SearchableText(
    "night_phases",
    ("note",),
    where="note <> ''",
    of=f"(scope = '' OR scope IN {SCOPES})",
    ours="EXISTS (SELECT 1 FROM nights WHERE id = night"
    f" AND {OURS_SINCE.replace('created_at', 'began_at')})",
    empties=(f"note = '{FORGOTTEN}'",),
)
"""Notes of phases, which may quote unusable answers."""
_ERASED_UNSENT = f"(SELECT id FROM outbox WHERE state = 'waiting' AND seq {GONE})"
REPORTED_AGAIN = (  # a report that is erased before it is sent is made anew
    "UPDATE nights SET reported_at = NULL WHERE id IN"
    f" (SELECT night FROM night_reports_sent WHERE outbox_id IN {_ERASED_UNSENT})",
    "UPDATE night_reports_sent SET outbox_id = NULL, asks = NULL"
    f" WHERE outbox_id IN {_ERASED_UNSENT}",
)
WHOLE = (
    "SELECT n.*, (SELECT json_group_array(json_object('scope', scope, 'name', name, 'status', status,"
    " 'before', before, 'after', after, 'note', note, 'tries', tries, 'calls', calls))"
    " FROM (SELECT * FROM night_phases WHERE night = n.id ORDER BY seq)) AS phases FROM nights n"
)

ONCE = ("schedule", "late")


@dataclass(frozen=True, slots=True)
class PhaseTally:
    """The result of a phase in one scope. `before`, `after`: its counts; `note`: a remark for the report.

    `tries`: times it was started; `calls`: model calls of the last try.
    """

    scope: str
    name: str
    status: PhaseStatus
    before: int = 0
    after: int = 0
    note: str = ""
    tries: int = 1
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Night:
    """One night. `scope`, `phase`: its only scope or phase; "": all."""

    id: str
    date: date
    why: Occasion
    state: Literal["running", "done", "stopped"]
    began_at: datetime
    scope: str = ""
    phase: str = ""
    phases: tuple[PhaseTally, ...] = ()
    calls: int = 0
    tokens: int = 0
    usd: float = 0.0
    ended_at: datetime | None = None
    reported_at: datetime | None = None

    def tally(self, scope: str, phase: str) -> PhaseTally | None:
        """Return the result of a phase, if there is one."""
        return next((t for t in self.phases if (t.scope, t.name) == (scope, phase)), None)


@dataclass(frozen=True, slots=True)
class PastResult:
    """The result of a scope in an earlier night. `age`: nights ago; `is_left`: some work was left."""

    age: int
    scope: str
    is_left: bool
    calls: int


_night = reader(Night)
_tally = reader(PhaseTally)
_turn = reader(PastResult)
_decision = reader(Decision)


class Nights:
    """The store of nights, their reports, and questions asked."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    # Nights

    async def begin(
        self, tx: Transaction, day: date, why: Occasion, scope: str = "", phase: str = ""
    ) -> Night | None:
        """Start a night; return None if the scheduled one of that date has run, and nobody asked for another."""
        if why in ONCE and await self.was_started(day, tx):
            return None
        taken = set(await tx.scalars("SELECT id FROM nights WHERE date = ?", (day.isoformat(),)))
        name, n = f"{day:%Y%m%d}", 1
        while name in taken:
            n += 1
            name = f"{day:%Y%m%d}-{n}"
        night = Night(name, day, why, "running", self._clock.now(), scope, phase)
        await tx.execute(*insert("nights", columns(night, "phases")))
        return night

    async def named(self, name: str) -> Night | None:
        """Return one night by its id."""
        row = await self._database.row(f"{WHOLE} WHERE id = ?", (name,))
        return _night(row) if row else None

    async def newest(self, most: int, day: date | None = None) -> list[Night]:
        """Return the newest nights, newest first; of a date, if given."""
        rows = await self._database.rows(
            f"{WHOLE} WHERE :day IS NULL OR date = :day ORDER BY seq DESC LIMIT :most",
            {"day": day.isoformat() if day else None, "most": most},
        )
        return [_night(row) for row in rows]

    async def was_started(self, day: date, source: Transaction | None = None) -> bool:
        """Check whether the scheduled night of this date was started."""
        query = "SELECT 1 FROM nights WHERE date = ? AND why IN ('schedule', 'late') LIMIT 1"
        return bool(await (source or self._database).rows(query, (day.isoformat(),)))

    async def running(self, source: Transaction | Database) -> list[Night]:
        """Return the nights that are running, or crashed, oldest first."""
        rows = await source.rows(f"{WHOLE} WHERE state = 'running' ORDER BY seq")
        return [_night(row) for row in rows]

    async def note(self, tx: Transaction, name: str, tally: PhaseTally) -> None:
        """Record the result of a phase, in place of its earlier one."""
        statement, values = insert("night_phases", {"night": name, **columns(tally)})
        await tx.execute(
            f"{statement} ON CONFLICT (night, scope, name) DO UPDATE SET status = excluded.status,"
            " before = excluded.before, after = excluded.after, note = excluded.note,"
            " tries = excluded.tries, calls = excluded.calls",
            values,
        )

    async def tallies(self, name: str, scope: str) -> dict[str, PhaseTally]:
        """Return the results of a night's phases in a scope, by phase."""
        rows = await self._database.rows(
            "SELECT * FROM night_phases WHERE (night, scope) = (?, ?)", (name, scope)
        )
        return {row["name"]: _tally(row) for row in rows}

    async def turns(self, but: str, most: int) -> list[PastResult]:
        """Return the results of the newest full nights by scope, newest first; without night `but`."""
        rows = await self._database.rows(
            "SELECT age, scope, max(status <> 'ok') AS is_left, sum(calls) AS calls FROM ("
            "  SELECT id, row_number() OVER (ORDER BY seq DESC) AS age FROM nights"
            "  WHERE phase = '' AND id <> ? ORDER BY seq DESC LIMIT ?)"
            " JOIN night_phases ON night = id GROUP BY age, scope ORDER BY age",
            (but, most),
        )
        return [_turn(row) for row in rows]

    async def spend(self, tx: Transaction, name: str, calls: int, tokens: int, usd: float) -> None:
        """Record the cost of a night so far."""
        await tx.execute(
            "UPDATE nights SET calls = ?, tokens = ?, usd = ? WHERE id = ?",
            (calls, tokens, usd, name),
        )

    async def end(
        self, tx: Transaction, name: str, state: Literal["done", "stopped"] = "done"
    ) -> None:
        """End a night. `stopped`: it crashed, and is not continued."""
        await tx.execute(
            "UPDATE nights SET state = ?, ended_at = ? WHERE id = ? AND state = 'running'",
            (state, stamp(self._clock.now()), name),
        )

    async def unreported(self, source: Transaction | Database) -> list[Night]:
        """Return finished nights that were not reported to everybody concerned, oldest first."""
        rows = await source.rows(
            f"{WHOLE} WHERE state <> 'running' AND reported_at IS NULL ORDER BY seq"
        )
        return [_night(row) for row in rows]

    async def mark_reported(self, tx: Transaction, names: Iterable[str]) -> None:
        """Mark nights as reported, also those that concern nobody any more."""
        await tx.execute(
            "UPDATE nights SET reported_at = ? WHERE id IN (SELECT value FROM json_each(?))",
            (stamp(self._clock.now()), json.dumps(list(names))),
        )

    # Reports

    async def unreported_items(self, tx: Transaction, night: Night) -> list[Decision]:
        """Return its results and questions in scopes without a report so far; nothing after a week."""
        rows = await tx.rows(
            "SELECT i.* FROM answered_decisions i LEFT JOIN night_reports_sent t"
            "  ON (t.night, t.scope) = (i.night, i.scope)"
            " JOIN nights n ON n.id = i.night AND n.ended_at > ?"
            " WHERE i.night = ? AND i.scope <> '' AND i.state IN ('done', 'open')"
            " AND t.outbox_id IS NULL ORDER BY i.n",
            (stamp(self._clock.now() - WEEK), night.id),
        )
        return [_decision(row) for row in rows]

    async def record_report(
        self, tx: Transaction, night: str, scope: str, outbox_id: str, asks: int | None
    ) -> None:
        """Record the message that reports a night to a scope; `asks`: the one item it asks about."""
        await tx.execute(
            "INSERT INTO night_reports_sent (night, scope, outbox_id, asks) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (night, scope) DO UPDATE SET outbox_id = excluded.outbox_id,"
            " asks = excluded.asks",
            (night, scope, outbox_id, asks),
        )

    async def to_report(
        self, tx: Transaction, scope: str, events: Collection[str]
    ) -> list[Decision]:
        """Return items of a scope's nights that are new to the model, or were shown with these messages."""
        rows = await tx.rows(
            "SELECT i.* FROM answered_decisions i JOIN nights n ON n.id = i.night"
            " LEFT JOIN night_reports_sent t ON t.night = i.night AND t.scope = i.scope"
            " WHERE i.scope = :scope AND n.state <> 'running' AND n.ended_at > :oldest"
            " AND i.state IN ('done', 'open', 'undone') AND (t.event_id IS NULL"
            "  OR t.event_id IN (SELECT value FROM json_each(:events))) ORDER BY n.seq, i.n",
            {
                "scope": scope,
                "oldest": stamp(self._clock.now() - WEEK),
                "events": json.dumps([*events]),
            },
        )
        return [_decision(row) for row in rows]

    async def has_news(self, scope: str) -> bool:
        """Check for results or questions of the last seven days, or questions still open."""
        found = await self._database.scalars(
            "SELECT 1 FROM decisions WHERE scope = ? AND night IS NOT NULL AND state <> 'planned'"
            " AND (state = 'open' OR at > ?) LIMIT 1",
            (scope, stamp(self._clock.now() - WEEK)),
        )
        return bool(found)

    async def mark_seen(
        self, tx: Transaction, scope: str, nights: Collection[str], event_id: str
    ) -> None:
        """Record that the model saw these nights with a message."""
        await tx.execute_many(
            "INSERT INTO night_reports_sent (night, scope, event_id) VALUES (?, ?, ?)"
            " ON CONFLICT (night, scope) DO UPDATE SET event_id = excluded.event_id",
            [(night, scope, event_id) for night in nights],
        )

    async def close_unapplied(self, tx: Transaction, decisions: Decisions, item: Decision) -> None:
        """Close a decision that could not be applied; its step is repeated by the next night."""
        if await decisions.move(tx, item, "outdated"):
            await tx.execute(
                "DELETE FROM examined WHERE scope = ? AND at = ?", (item.scope, stamp(item.at))
            )

    # Questions asked

    async def not_yet_asked(self, scope: str, digests: Collection[str]) -> set[str]:
        """Return the digests that nobody was asked about."""
        rows = await self._database.scalars(
            "SELECT digest FROM examined WHERE scope = ?"
            " AND digest IN (SELECT value FROM json_each(?))",
            (scope, json.dumps([*digests])),
        )
        return {*digests} - {*rows}

    async def mark_asked(
        self, tx: Transaction, scope: str, digests: Collection[str], at: datetime | None = None
    ) -> None:
        """Record that these were asked about, at that moment or now, so that they are not asked again."""
        await tx.execute_many(
            "INSERT INTO examined (scope, digest, at) VALUES (?, ?, ?)"
            " ON CONFLICT (scope, digest) DO UPDATE SET at = excluded.at",
            [(scope, each, stamp(at or self._clock.now())) for each in digests],
        )

    # Expiry

    async def expire(self, tx: Transaction) -> None:
        """Remove the phases of nights that can no longer be undone; the nights stay."""
        await tx.execute(
            "DELETE FROM night_phases WHERE night IN"
            " (SELECT id FROM nights WHERE state <> 'running' AND began_at <= ?)",
            (stamp(self._clock.now() - KEPT),),
        )

    async def expire_asked(self, tx: Transaction) -> int:
        """Forget old questions, which may be asked again; most of their subjects are gone."""
        return await tx.execute(
            "DELETE FROM examined WHERE at <= ?", (stamp(self._clock.now() - REMEMBERED),)
        )


async def asked_by(tx: Transaction, outbox_id: str) -> Decision | None:
    """Return the question that a message asks, while it is open."""
    row = await tx.row(
        "SELECT i.* FROM night_reports_sent t JOIN answered_decisions i ON (i.night, i.n) = (t.night, t.asks)"
        " WHERE t.outbox_id = ? AND i.state = 'open'",
        (outbox_id,),
    )
    return _decision(row) if row else None
