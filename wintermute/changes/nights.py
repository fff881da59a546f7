"""Nights: what was tidied while nobody watched, item by item, in rows that a kill leaves whole.

    planned ─┬─▶ done ──▶ undone
             ╰─▶ open ─┬▶ done (a person said yes)
                       ├▶ refused
                       ╰▶ outdated: what it was about is another by now, or nobody answered

An item is `NIGHT#N`, numbered through the night over all scopes; whoever reads sees those of one scope.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import partial
from hashlib import blake2b
from typing import Literal

from wintermute.changes.change_sets import KEPT
from wintermute.changes.undo import Undone
from wintermute.clock import Clock, stamp
from wintermute.db import Database, Transaction
from wintermute.db.text_search import OURS_SINCE, SCOPES, Kept, Traces
from wintermute.db.values import columns, insert, reader, stored
from wintermute.messages import Json
from wintermute.secret_shapes import secret_kind, without_secrets

Occasion = Literal["schedule", "late", "asked", "command"]
"""Why a night runs: its time came, it was missed, somebody asked in a chat, or at the command line."""
ItemState = Literal["planned", "done", "open", "refused", "outdated", "undone"]
PhaseStatus = Literal["running", "ok", "failed", "left"]
"""`left`: there is more to do than this night may; the next goes on."""
WAITS = timedelta(days=14)
"""How long a question waits for an answer (M-079)."""
WEEK = timedelta(days=7)
HALF = "WHERE state NOT IN ('done', 'undone') AND names <> '[]' AND plan ->> '$.files' IS NOT NULL"
JUDGED = timedelta(days=365)
"""How long it is known what was asked about."""


@dataclass(frozen=True, slots=True)
class PhaseTally:
    """What became of a phase in one scope. `before`, `after`: what it counts; `note`: what to know.

    `tries`: how often it was begun; `calls`: the questions that it asked at last.
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
    """One night. `scope`, `phase`: what it is about alone; "": everything."""

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
        """What is known of a phase."""
        return next((t for t in self.phases if (t.scope, t.name) == (scope, phase)), None)


@dataclass(frozen=True, slots=True)
class PastTurn:
    """What became of a scope in a night. `age`: how many nights ago; `is_left`: not all was done."""

    age: int
    scope: str
    is_left: bool
    calls: int


@dataclass(frozen=True, slots=True)
class Planned:
    """What a phase wants to do.

    `plan`: what is done, see `deeds`. `loses`: how many facts of the scope go by it. `question`: only
    a person may say yes. `digest`: what is not to be asked again. `outside`: whether its words may
    come from a page, a file, a stranger (L-037).
    """

    kind: str
    before: tuple[str, ...]
    after: str
    reason: str
    plan: Json
    evidence: tuple[str, ...] = ()
    loses: int = 0
    question: bool = False
    digest: str = ""
    outside: bool = False


@dataclass(frozen=True, slots=True)
class NightItem:
    """What a night did or asks. `names`: what it changed, each as kind and id, in `change_set`."""

    night: str
    n: int
    scope: str
    phase: str
    kind: str
    state: ItemState
    before: tuple[str, ...]
    after: str
    reason: str
    evidence: tuple[str, ...]
    plan: Json
    loses: int
    names: tuple[tuple[str, str], ...]
    change_set: str | None
    at: datetime

    @property
    def id(self) -> str:
        """What it is called."""
        return f"{self.night}#{self.n}"

    @property
    def from_outside(self) -> bool:
        """Whether its words may come from outside: no model is told them (L-037)."""
        return bool(self.plan.get("outside"))


@dataclass(frozen=True, slots=True)
class Answers:
    """What people of a scope are asked, or have answered. `wishes`: each as kind and plan.

    `kept`: facts of which somebody said that they stay as they are, or put them back.
    """

    wishes: frozenset[str]
    kept: frozenset[str]

    def knows(self, wanted: Planned) -> bool:
        """Whether just this is asked, or was answered."""
        return _wish(wanted.kind, kept_plan(wanted)) in self.wishes

    def disputes(self, wanted: Planned) -> bool:
        """Whether it is about what somebody wanted to keep: a night does not decide that alone."""
        return any(each["id"] in self.kept for each in wanted.plan.get("members", ()))


def _wish(kind: str, plan: Json) -> str:
    return json.dumps([kind, plan], sort_keys=True)


def kept_plan(wanted: Planned) -> Json:
    """A plan as an item has it."""
    return wanted.plan | ({"outside": True} if wanted.outside else {})


def digest_of(*shown: str) -> str:
    """A digest of what was asked about, in which order does not matter."""
    return blake2b("\0".join(sorted(shown)).encode(), digest_size=16).hexdigest()


ITEMS = Kept(
    "night_items",
    ("before", "after", "reason", "plan"),
    of=f"scope IN {SCOPES}",
    ours=OURS_SINCE.replace("created_at", "at"),
)
NOTES = Kept(
    "night_phases",
    ("note",),
    where="note <> ''",
    of=f"(scope = '' OR scope IN {SCOPES})",
    ours="EXISTS (SELECT 1 FROM nights WHERE id = night"
    f" AND {OURS_SINCE.replace('created_at', 'began_at')})",
)
"""What phases noted, which may quote what they could make nothing of."""
WHOLE = (
    "SELECT n.*, (SELECT json_group_array(json_object('scope', scope, 'name', name, 'status', status,"
    " 'before', before, 'after', after, 'note', note, 'tries', tries, 'calls', calls))"
    " FROM (SELECT * FROM night_phases WHERE night = n.id ORDER BY seq)) AS phases FROM nights n"
)
_night = reader(Night)
_tally = reader(PhaseTally)
_turn = reader(PastTurn)
_item = reader(NightItem)
ONCE = ("schedule", "late")


class Nights:
    """The store of nights, their items, and what was judged."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    # Nights

    async def begin(
        self, tx: Transaction, day: date, why: Occasion, scope: str = "", phase: str = ""
    ) -> Night | None:
        """A new night; None where that of the date was there already, and nobody asked for more."""
        query = "SELECT 1 FROM nights WHERE date = ? AND why IN ('schedule', 'late')"
        if why in ONCE and await tx.exists(query, (day.isoformat(),)):
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
        """One night by its id."""
        row = await self._database.row(f"{WHOLE} WHERE id = ?", (name,))
        return _night(row) if row else None

    async def newest(self, most: int, day: date | None = None) -> list[Night]:
        """The newest ones, newest first; of a date, if given."""
        rows = await self._database.rows(
            f"{WHOLE} WHERE :day IS NULL OR date = :day ORDER BY seq DESC LIMIT :most",
            {"day": day.isoformat() if day else None, "most": most},
        )
        return [_night(row) for row in rows]

    async def has_been(self, day: date, source: Transaction | None = None) -> bool:
        """Whether the night of this date was begun by itself."""
        query = "SELECT 1 FROM nights WHERE date = ? AND why IN ('schedule', 'late') LIMIT 1"
        return bool(await (source or self._database).rows(query, (day.isoformat(),)))

    async def running(self, source: Transaction | Database) -> list[Night]:
        """What is at work, or was killed at it, oldest first."""
        rows = await source.rows(f"{WHOLE} WHERE state = 'running' ORDER BY seq")
        return [_night(row) for row in rows]

    async def note(self, tx: Transaction, name: str, tally: PhaseTally) -> None:
        """What became of a phase, in the place of what was noted of it before."""
        statement, values = insert("night_phases", {"night": name, **columns(tally)})
        await tx.execute(
            f"{statement} ON CONFLICT (night, scope, name) DO UPDATE SET status = excluded.status,"
            " before = excluded.before, after = excluded.after, note = excluded.note,"
            " tries = excluded.tries, calls = excluded.calls",
            values,
        )

    async def tallies(self, name: str, scope: str) -> dict[str, PhaseTally]:
        """What is known of the phases of a night in a scope, by their names."""
        rows = await self._database.rows(
            "SELECT * FROM night_phases WHERE (night, scope) = (?, ?)", (name, scope)
        )
        return {row["name"]: _tally(row) for row in rows}

    async def turns(self, but: str, most: int) -> list[PastTurn]:
        """What the newest whole nights came to scope by scope, newest first; `but` one of them."""
        rows = await self._database.rows(
            "SELECT age, scope, max(status <> 'ok') AS is_left, sum(calls) AS calls FROM ("
            "  SELECT id, row_number() OVER (ORDER BY seq DESC) AS age FROM nights"
            "  WHERE phase = '' AND id <> ? ORDER BY seq DESC LIMIT ?)"
            " JOIN night_phases ON night = id GROUP BY age, scope ORDER BY age",
            (but, most),
        )
        return [_turn(row) for row in rows]

    async def spend(self, tx: Transaction, name: str, calls: int, tokens: int, usd: float) -> None:
        """What a night has cost by now."""
        await tx.execute(
            "UPDATE nights SET calls = ?, tokens = ?, usd = ? WHERE id = ?",
            (calls, tokens, usd, name),
        )

    async def end(
        self, tx: Transaction, name: str, state: Literal["done", "stopped"] = "done"
    ) -> None:
        """It is over. `stopped`: it was killed, and nobody goes on with it."""
        await tx.execute(
            "UPDATE nights SET state = ?, ended_at = ? WHERE id = ? AND state = 'running'",
            (state, stamp(self._clock.now()), name),
        )

    async def untold(self, source: Transaction | Database) -> list[Night]:
        """What is over and was not told to all who it is about, oldest first."""
        rows = await source.rows(
            f"{WHOLE} WHERE state <> 'running' AND reported_at IS NULL ORDER BY seq"
        )
        return [_night(row) for row in rows]

    async def mark_told(self, tx: Transaction, names: Iterable[str]) -> None:
        """These were told, or nobody is left to be told."""
        await tx.execute(
            "UPDATE nights SET reported_at = ? WHERE id IN (SELECT value FROM json_each(?))",
            (stamp(self._clock.now()), json.dumps(list(names))),
        )

    # Who was told

    async def untold_items(self, tx: Transaction, night: Night) -> list[NightItem]:
        """What it did or asks in scopes that no message has told of it; nothing after a week."""
        rows = await tx.rows(
            "SELECT i.* FROM night_items i LEFT JOIN night_reports_sent t"
            "  ON (t.night, t.scope) = (i.night, i.scope)"
            " JOIN nights n ON n.id = i.night AND n.ended_at > ?"
            " WHERE i.night = ? AND i.scope <> '' AND i.state IN ('done', 'open')"
            " AND t.outbox_id IS NULL ORDER BY i.seq",
            (stamp(self._clock.now() - WEEK), night.id),
        )
        return [_item(row) for row in rows]

    async def tell(
        self, tx: Transaction, night: str, scope: str, outbox_id: str, asks: int | None
    ) -> None:
        """Those of a scope are told of a night by this message; `asks`: the one item it asks about."""
        await tx.execute(
            "INSERT INTO night_reports_sent (night, scope, outbox_id, asks) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (night, scope) DO UPDATE SET outbox_id = excluded.outbox_id,"
            " asks = excluded.asks",
            (night, scope, outbox_id, asks),
        )

    async def to_report(
        self, tx: Transaction, scope: str, events: Collection[str]
    ) -> list[NightItem]:
        """What the model was not told yet of a scope's nights, or was told with these messages."""
        rows = await tx.rows(
            "SELECT i.* FROM night_items i JOIN nights n ON n.id = i.night"
            " LEFT JOIN night_reports_sent t ON t.night = i.night AND t.scope = i.scope"
            " WHERE i.scope = :scope AND n.state <> 'running' AND n.ended_at > :oldest"
            " AND i.state IN ('done', 'open', 'undone') AND (t.event_id IS NULL"
            "  OR t.event_id IN (SELECT value FROM json_each(:events))) ORDER BY i.seq",
            {
                "scope": scope,
                "oldest": stamp(self._clock.now() - WEEK),
                "events": json.dumps([*events]),
            },
        )
        return [_item(row) for row in rows]

    async def has_news(self, scope: str) -> bool:
        """Whether something was done or asked there in the last seven days, or is still asked."""
        found = await self._database.scalars(
            "SELECT 1 FROM night_items WHERE scope = ? AND state <> 'planned'"
            " AND (state = 'open' OR at > ?) LIMIT 1",
            (scope, stamp(self._clock.now() - WEEK)),
        )
        return bool(found)

    async def reported(
        self, tx: Transaction, scope: str, nights: Collection[str], event_id: str
    ) -> None:
        """The model is told of these nights with a message."""
        await tx.execute_many(
            "INSERT INTO night_reports_sent (night, scope, event_id) VALUES (?, ?, ?)"
            " ON CONFLICT (night, scope) DO UPDATE SET event_id = excluded.event_id",
            [(night, scope, event_id) for night in nights],
        )

    # Items

    async def plan(
        self,
        tx: Transaction,
        night: str,
        scope: str,
        phase: str,
        wanted: Planned,
        state: ItemState = "planned",
    ) -> NightItem:
        """Number what a phase wants."""
        (item,) = await self.plan_all(tx, (night, scope, phase), [(wanted, state)])
        return item

    async def plan_all(
        self,
        tx: Transaction,
        where: tuple[str, str, str],
        wanted: Sequence[tuple[Planned, ItemState]],
        judged: Sequence[str] = (),
    ) -> list[NightItem]:
        """Number what a step of a phase wants, and keep what was `judged` by it, of one moment.

        `where`: the night, the scope, and the phase.
        """
        night, scope, phase = where
        digests = [each.digest for each, _ in wanted if each.digest]
        wanted = [(safe, state) for each, state in wanted if (safe := _safe(each))]
        query = "SELECT coalesce(max(n), 0) + 1 FROM night_items WHERE night = ?"
        (first,) = await tx.scalars(query, (night,))
        now = self._clock.now()
        items = [
            replace(as_item(night, scope, phase, each, now), n=n, state=state)
            for n, (each, state) in enumerate(wanted, first)
        ]
        for item in items:
            await tx.execute(*insert("night_items", columns(item)))
        await self._judge(tx, scope, [*digests, *judged], now)
        return items

    async def items(
        self,
        source: Transaction | Database,
        night: str | None = None,
        scope: str | None = None,
        states: Collection[ItemState] = (),
    ) -> list[NightItem]:
        """The items of a night or of all, of a scope or of all, in these states or in any."""
        rows = await source.rows(
            "SELECT * FROM night_items WHERE (:night IS NULL OR night = :night)"
            " AND (:scope IS NULL OR scope = :scope)"
            " AND (:states = '[]' OR state IN (SELECT value FROM json_each(:states)))"
            " ORDER BY seq",
            {"night": night, "scope": scope, "states": json.dumps([*states])},
        )
        return [_item(row) for row in rows]

    async def answered(self, scope: str) -> Answers:
        """What people were asked, or said to what nights did, as long as it is kept (M-079)."""
        found = await self.items(self._database, scope=scope, states=("open", "refused", "undone"))
        members = [
            each["id"]
            for item in found
            for each in item.plan.get("members", ())
            if item.state != "open"
        ]
        wishes = (_wish(item.kind, item.plan) for item in found)
        return Answers(frozenset(wishes), frozenset(members))

    async def current(self, tx: Transaction, item: NightItem) -> NightItem | None:
        """An item as it is by now; None: it was answered or forgotten since it was read."""
        row = await tx.row(
            "SELECT * FROM night_items WHERE night = ? AND n = ? AND state = ? AND plan = ?",
            (item.night, item.n, item.state, json.dumps(item.plan)),
        )
        return _item(row) if row else None

    async def interrupted(self) -> list[NightItem]:
        """What is on record but may not be in place: we were killed in between, or a disk was full."""
        rows = await self._database.rows(f"SELECT * FROM night_items {HALF} ORDER BY seq")
        return [_item(row) for row in rows]

    async def is_left(self, tx: Transaction) -> bool:
        """Whether a night is under way, or a kill left it so."""
        return await tx.exists("SELECT 1 FROM nights WHERE state = 'running'")

    async def is_half(self, tx: Transaction) -> bool:
        """Whether files of an item may be half in place."""
        return await tx.exists(f"SELECT 1 FROM night_items {HALF} LIMIT 1")

    async def unrecord(self, tx: Transaction, item: NightItem) -> None:
        """Nothing of an item is in place, and nothing of it is on record any more."""
        await tx.execute(
            "UPDATE night_items SET names = '[]', change_set = NULL"
            " WHERE night = ? AND n = ? AND state = ?",
            (item.night, item.n, item.state),
        )

    async def turn(self, tx: Transaction, item: NightItem) -> None:
        """Keep an item as it was answered: see `turned`."""
        await tx.execute(
            "UPDATE night_items SET plan = :plan, before = :before, after = :after"
            " WHERE night = :night AND n = :n AND state = :state",
            stored(columns(item)),
        )

    async def take_back(self, tx: Transaction, item: NightItem) -> None:
        """What could not be done is found again by the next night, for its step has judged nothing.

        What is half in place is not taken back, but gone on with.
        """
        taken = await tx.execute(
            "UPDATE night_items SET state = 'outdated'"
            " WHERE night = ? AND n = ? AND state = ? AND names = '[]'",
            (item.night, item.n, item.state),
        )
        if taken:
            await tx.execute(
                "DELETE FROM examined WHERE scope = ? AND at = ?", (item.scope, stamp(item.at))
            )

    async def move(
        self,
        tx: Transaction,
        item: NightItem,
        state: ItemState,
        names: Sequence[tuple[str, str]] | None = None,
        change_set: str | None = None,
    ) -> bool:
        """Whether an item was still as it is known here, and is in another state from now on."""
        return (
            await tx.execute(
                "UPDATE night_items SET state = :state, names = coalesce(:names, names),"
                " change_set = coalesce(:set, change_set) WHERE night = :night AND n = :n AND state = :was",
                {
                    "state": state,
                    "names": None if names is None else json.dumps([*names]),
                    "set": change_set,
                    "night": item.night,
                    "n": item.n,
                    "was": item.state,
                },
            )
            == 1
        )

    async def set_of(self, tx: Transaction, night: str, scope: str) -> str | None:
        """The change set of a scope in a night, once there is one."""
        found = await tx.scalars(
            "SELECT n.change_set FROM night_items n JOIN change_sets s ON s.id = n.change_set"
            " WHERE n.night = ? AND n.scope = ? AND s.cause = 'night' ORDER BY n.n LIMIT 1",
            (night, scope),
        )
        return str(found[0]) if found else None

    async def lost(self, tx: Transaction, scope: str) -> int:
        """How many facts of a scope went by nights of the last seven days."""
        (count,) = await tx.scalars(
            "SELECT coalesce(sum(loses), 0) FROM night_items"
            " WHERE scope = ? AND state = 'done' AND at > ?",
            (scope, stamp(self._clock.now() - WEEK)),
        )
        return int(count)

    # What was judged

    async def unjudged(self, scope: str, digests: Collection[str]) -> set[str]:
        """Those that nobody was asked about."""
        rows = await self._database.scalars(
            "SELECT digest FROM examined WHERE scope = ?"
            " AND digest IN (SELECT value FROM json_each(?))",
            (scope, json.dumps([*digests])),
        )
        return {*digests} - {*rows}

    async def judge(self, tx: Transaction, scope: str, digests: Collection[str]) -> None:
        """They were asked about; they are not again."""
        await self._judge(tx, scope, digests, self._clock.now())

    async def _judge(
        self, tx: Transaction, scope: str, digests: Collection[str], at: datetime
    ) -> None:
        await tx.execute_many(
            "INSERT INTO examined (scope, digest, at) VALUES (?, ?, ?)"
            " ON CONFLICT (scope, digest) DO UPDATE SET at = excluded.at",
            [(scope, each, stamp(at)) for each in digests],
        )

    # What goes

    async def outdate(self, tx: Transaction) -> int:
        """What nobody answered in time is no question any more; how many (M-079).

        It waits from the end of its night on: nobody is asked before.
        """
        return await tx.execute(
            "UPDATE night_items SET state = 'outdated' WHERE state = 'open'"
            " AND (SELECT ended_at FROM nights WHERE id = night) <= ?",
            (stamp(self._clock.now() - WAITS),),
        )

    async def expire(self, tx: Transaction) -> int:
        """Remove the items and phases of nights that can no longer be undone; their rows stay.

        How many items. What a person said yes to later can be undone for as long after that.
        """
        await tx.execute(
            "DELETE FROM night_phases WHERE night IN"
            " (SELECT id FROM nights WHERE state <> 'running' AND began_at <= ?)",
            (stamp(self._clock.now() - KEPT),),
        )
        return await tx.execute(
            "DELETE FROM night_items WHERE at <= ? AND state NOT IN ('open', 'planned')"
            " AND NOT EXISTS (SELECT 1 FROM change_sets WHERE id = change_set)",
            (stamp(self._clock.now() - KEPT),),
        )

    async def expire_judged(self, tx: Transaction) -> int:
        """What was judged so long ago may be asked again: mostly it is about nothing any more."""
        return await tx.execute(
            "DELETE FROM examined WHERE at <= ?", (stamp(self._clock.now() - JUDGED),)
        )


def turned(item: NightItem, *, neither: bool) -> NightItem:
    """Turn a question which of two is true to the older one, or to neither of them (M-087)."""
    [older], newer = item.plan["members"], item.plan["winner"]
    members = [older, newer] if neither else [newer]
    return replace(
        item,
        plan=item.plan | {"members": members, "winner": None if neither else older},
        before=tuple(each["text"] for each in members),
        after="" if neither else older["text"],
    )


async def asked_by(tx: Transaction, outbox_id: str) -> NightItem | None:
    """The one question that a message asks, while it is open."""
    row = await tx.row(
        "SELECT i.* FROM night_reports_sent t JOIN night_items i ON (i.night, i.n) = (t.night, t.asks)"
        " WHERE t.outbox_id = ? AND i.state = 'open'",
        (outbox_id,),
    )
    return _item(row) if row else None


async def follow_undo(tx: Transaction, undone: Undone) -> None:
    """What somebody took back by the name of its change set is taken back here as well."""
    sets = [each.set_id for each in (undone, *undone.merges)]
    await tx.execute(
        "UPDATE night_items SET state = 'undone' WHERE state = 'done' AND names <> '[]' AND change_set"
        " IN (SELECT undoes FROM change_sets WHERE id IN (SELECT value FROM json_each(?)))"
        " AND NOT EXISTS (SELECT 1 FROM json_each(names) t WHERE t.value ->> 1 NOT IN"
        "  (SELECT c.item FROM changes c JOIN change_sets u ON u.id = c.change_set_id"
        "   WHERE u.undoes = night_items.change_set))",
        (json.dumps(sets),),
    )


FORGOTTEN = "forgotten"
"""The reason of an item whose words somebody asked to be forgotten."""


async def erase_items(tx: Transaction, traces: Traces) -> int:
    """Let no item tell any of these words; how many did."""
    return await tx.execute(
        f"UPDATE night_items SET before = '[]', after = '', reason = '{FORGOTTEN}', plan = '{{}}',"
        " state = CASE WHEN state IN ('open', 'planned') THEN 'outdated' ELSE state END"
        f" WHERE {ITEMS.rows()}",
        traces.asked(ITEMS),
    )


async def tell_again(tx: Transaction, unsaid: Collection[str]) -> None:
    """Have people told anew, without what was forgotten, where a report was erased before it was sent."""
    nights = await tx.scalars(
        "UPDATE night_reports_sent SET outbox_id = NULL, asks = NULL"
        " WHERE outbox_id IN (SELECT value FROM json_each(?)) RETURNING night",
        (json.dumps([*unsaid]),),
    )
    await tx.execute(
        "UPDATE nights SET reported_at = NULL WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(nights),),
    )


async def erase_notes(tx: Transaction, traces: Traces) -> int:
    """Let no phase of a night quote any of these words; how many did."""
    return await tx.execute(
        f"UPDATE night_phases SET note = 'forgotten' WHERE {NOTES.rows()}", traces.asked(NOTES)
    )


def _safe(wanted: Planned) -> Planned | None:
    """The same without a secret that was not there before; None: a fact would hold it (M-083)."""
    plan, files = wanted.plan, wanted.plan.get("files", ())
    theirs = [*wanted.before, *plan.get("old", {}).values(), *(each["was"] or "" for each in files)]
    if plan.get("do") in ("merge", "list"):
        facts = {*plan.get("lines", [wanted.after])} - {*theirs}
        return None if any(map(secret_kind, facts)) else wanted
    hide = partial(without_secrets, theirs="\n".join(theirs))
    plan = plan | {name: hide(plan[name]) for name in ("content", "ends") if plan.get(name)}
    if files:
        plan["files"] = [each | {"text": each["text"] and hide(each["text"])} for each in files]
    return replace(wanted, after=hide(wanted.after), reason=hide(wanted.reason), plan=plan)


def as_item(night: str, scope: str, phase: str, wanted: Planned, at: datetime) -> NightItem:
    """What a phase wants as an item of a night, not numbered yet."""
    return NightItem(
        *(night, 0, scope, phase, wanted.kind, "planned"),
        before=wanted.before,
        after=wanted.after,
        reason=wanted.reason,
        evidence=wanted.evidence,
        plan=kept_plan(wanted),
        loses=wanted.loses,
        names=(),
        change_set=None,
        at=at,
    )
