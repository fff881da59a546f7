"""The store of sub-sessions and their dependencies.

A sub-session can depend only on existing ones, so the only possible cycle is one that names itself.
"""

import json
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from wintermute.clock import Clock, moment, stamp
from wintermute.db import Database, Row, Transaction
from wintermute.db.text_search import OF_EVENTS, OURS_SINCE, SCOPES, SearchableText
from wintermute.db.values import columns, insert, reader
from wintermute.errors import ToolFailed
from wintermute.ids import NewId
from wintermute.loom.records import PromptMode, Wards
from wintermute.messages import Json, Origin, json_in, mapping
from wintermute.text import one_line

SubSessionState = Literal[
    "waiting", "running", "collecting", "done", "failed", "timed_out", "ended"
]
"""`collecting`: it is done, but sub-sessions that it spawned are not. `ended`: from outside."""

ABANDONED = "parent_terminated"
STOPPED = "stopped"
RESTARTED = "restarted"
OUTCOMES: dict[str, SubSessionState] = {
    "done": "done",
    "text": "done",
    "max_seconds": "timed_out",
    ABANDONED: "ended",
    STOPPED: "ended",
}
SPAWN = "spawn_sub_session"
FAILED = "dependency failed: {label}"
Spawns = Mapping[int, tuple[str, list[str]]]
OPEN = "state IN ('waiting', 'running', 'collecting')"
ID_LENGTH = len("sub_") + 8
_LISTED = "(SELECT value FROM json_each(:ids))"
SESSIONS = SearchableText(
    *("sub_sessions", ("name", "objective", "context", "result")),
    of=f"scope IN {SCOPES}",
    ours=OURS_SINCE,
    derived=f"root_event {OF_EVENTS}",
    waits=f"iif({OPEN}, coalesce(cast_id, id), NULL)",
    empties=("objective = ''", "context = ''", "result = ''", "name = NULL"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubSessionOrder:
    """A parent's order for a sub-session; `timeout_s`, `max_depth` None: as configured."""

    objective: str
    context: str = ""
    mode: PromptMode = "minimal"
    tools: tuple[str, ...] | None = None
    model: str | None = None
    name: str | None = None
    depends_on: tuple[str, ...] = ()
    not_before: datetime | None = None
    timeout_s: float | None = None
    max_depth: int | None = None


@dataclass(frozen=True, slots=True)
class Spawner:
    """The call that spawns a sub-session: the `n`-th of a turn, with its cast and scope."""

    conversation_id: str
    cast_id: str
    turn_id: str
    n: int
    event_id: str | None
    scope: str
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSettings:
    """The tools, model and limits of a sub-session."""

    tools: tuple[str, ...]
    role: str
    backend: str | None
    depth: int
    wards: Wards


@dataclass(frozen=True, slots=True, kw_only=True)
class SubSession:
    """One sub-session. `room` is the conversation that gets its report.

    `parent` is the sub-session that spawned or called it, `room_turn` the room's turn above it,
    `root_event` the event that the room's cast answers.
    """

    id: str
    blocking: bool
    branch_id: str
    cast_id: str | None
    parent: str | None
    room: str
    room_turn: str
    root_event: str | None
    workflow: str
    name: str | None
    objective: str
    context: str
    mode: PromptMode
    settings: WorkSettings
    scope: str
    origin: Origin
    not_before: datetime | None
    state: SubSessionState
    reason: str | None
    result: str

    @property
    def label(self) -> str:
        """The name that its parent gave it, or its id."""
        return self.name or self.id

    @property
    def is_open(self) -> bool:
        """True until it has ended, with all it spawned."""
        return self.state in ("waiting", "running", "collecting")


def state_of(reason: str) -> SubSessionState:
    """Return the state of a sub-session whose cast ended for this reason."""
    return OUTCOMES.get(reason, "failed")


def resolved(
    asked: Sequence[str], name: str | None, known: Mapping[str, SubSession]
) -> tuple[SubSession, ...]:
    """Return the sub-sessions of these ids or names, each once.

    `known` are those that may be named, by id or name; `name` is that of the new one.

    Raises: ToolFailed for an unknown one, for a cycle (L-065), and for one that has failed (L-064).
    """
    if name is not None and name in asked:
        raise ToolFailed(f"cycle: {name} depends on itself; nothing was started")
    unknown = [word for word in asked if word not in known]
    if unknown:
        raise ToolFailed(
            f"unknown dependency: {', '.join(unknown)}; nothing was started. Spawn it first;"
            " names hold for one answer, ids for the whole conversation"
        )
    dependencies = tuple(dict.fromkeys(known[word] for word in asked))
    for each in dependencies:
        if each.state != "done" and not each.is_open:
            raise ToolFailed(f"{FAILED.format(label=each.label)}; nothing was started")
    return dependencies


def joined(own: str, dependencies: Sequence[SubSession]) -> tuple[str, tuple[str, ...]]:
    """Return the workflow of a new sub-session, and the workflows to merge into it (L-067)."""
    workflows = list(dict.fromkeys(each.workflow for each in dependencies)) or [own]
    return workflows[0], tuple(workflows[1:])


def spawns_of(calls: Sequence[Json]) -> Spawns:
    """Return the name and the dependencies of each spawn in a turn, by its place."""
    return {n: _name_and_needs(call) for n, call in enumerate(calls) if call["name"] == SPAWN}


def names_still_needed(spawns: Spawns, seen: Set[int]) -> set[str]:
    """Return the names on which unfinished spawns of a turn depend, directly or not.

    Sub-sessions with these names are held back: one that ends at once would otherwise be reported
    before its dependents exist.
    """
    needs = {name: depends_on for name, depends_on in spawns.values() if name}
    names: set[str] = set()
    ahead = [word for n, (_, words) in spawns.items() if n not in seen for word in words]
    while ahead:
        word = ahead.pop()
        if word not in names:
            names.add(word)
            ahead += needs.get(word, ())
    return names


def _name_and_needs(call: Json) -> tuple[str, list[str]]:
    """Return the name and the dependencies in a call's arguments, however malformed."""
    args = mapping(json_in(call["arguments"]))
    depends_on = args.get("depends_on")
    words = depends_on if isinstance(depends_on, list) else []
    return one_line(str(args.get("name") or "")), [word for word in words if isinstance(word, str)]


_settings = reader(WorkSettings)
_node = reader(SubSession, "settings")


class SubSessions:
    """The store of sub-sessions. A change of state is stored together with its consequences."""

    def __init__(self, database: Database, clock: Clock, new_id: NewId) -> None:
        self._database = database
        self._clock = clock
        self._new_id = new_id
        self._parsed_spawns: tuple[str, Spawns] = ("", {})

    async def fresh_id(self, tx: Transaction) -> str:
        """Return an unused id."""
        while True:
            sub_id = self._new_id("sub")[:ID_LENGTH]
            if not await tx.exists("SELECT 1 FROM sub_sessions WHERE id = ?", (sub_id,)):
                return sub_id

    async def add(
        self,
        tx: Transaction,
        sub_id: str,
        spawner: Spawner,
        order: SubSessionOrder,
        settings: WorkSettings,
        *,
        blocking: bool,
        item: int,
        conversation: tuple[str, str],
        parent: SubSession | None,
        workflow: str,
        dependencies: Sequence[SubSession] = (),
    ) -> SubSession:
        """Store a new one in the state waiting. `conversation` is its own, with its branch."""
        values = columns(order, "tools", "model", "depends_on", "timeout_s", "max_depth")
        values |= columns(settings) | {
            "id": sub_id,
            "blocking": blocking,
            "conversation_id": conversation[0],
            "branch_id": conversation[1],
            "parent_cast": spawner.cast_id,
            "parent_turn": spawner.turn_id,
            "n": spawner.n,
            "item": item,
            "parent": parent.id if parent else None,
            "room": spawner.conversation_id,
            "room_turn": parent.room_turn if parent else spawner.turn_id,
            "root_event": spawner.event_id,
            "workflow": workflow,
            "scope": spawner.scope,
            "origin": spawner.origin,
            "missing": sum(each.state != "done" for each in dependencies),
            "held": order.name is not None,
            "state": "waiting",
            "created_at": self._clock.now(),
        }
        row = await tx.row(*insert("sub_sessions", values, "RETURNING *"))
        await tx.execute_many(
            "INSERT INTO sub_session_edges (depends_on, node) VALUES (?, ?)",
            [(each.id, sub_id) for each in dependencies],
        )
        return _existing(row, sub_id)

    async def merge(self, tx: Transaction, into: str, others: Sequence[str]) -> None:
        """Merge workflows."""
        if others:
            await tx.execute(
                f"UPDATE sub_sessions SET workflow = :into WHERE workflow IN {_LISTED}",
                {"into": into, "ids": json.dumps(others)},
            )

    async def get(self, tx: Transaction, sub_id: str) -> SubSession:
        """Return one sub-session."""
        return _existing(await tx.row("SELECT * FROM sub_sessions WHERE id = ?", (sub_id,)), sub_id)

    async def of_cast(self, tx: Transaction, cast_id: str) -> SubSession | None:
        """Return the sub-session of a cast; None for the cast of a room."""
        row = await tx.row("SELECT * FROM sub_sessions WHERE cast_id = ?", (cast_id,))
        return _sub_session(row) if row else None

    async def of_call(self, tx: Transaction, turn_id: str, n: int, item: int) -> SubSession | None:
        """Return the sub-session that a call began before a crash interrupted it (L-051)."""
        row = await tx.row(
            "SELECT * FROM sub_sessions WHERE parent_turn = ? AND n = ? AND item = ?",
            (turn_id, n, item),
        )
        return _sub_session(row) if row else None

    async def check_name(self, tx: Transaction, cast_id: str, name: str | None) -> None:
        """Raise ToolFailed if a spawn of the same cast has this name."""
        row = await tx.row(
            "SELECT id FROM sub_sessions WHERE parent_cast = ? AND name = ?", (cast_id, name)
        )
        if row is not None:
            raise ToolFailed(f"there is a sub-session named {name} already: {row['id']}")

    async def known(
        self, tx: Transaction, spawner: Spawner, parent: SubSession | None, words: Sequence[str]
    ) -> dict[str, SubSession]:
        """Return the existing siblings with these ids, or names given in the same cast."""
        rows = await tx.rows(
            "SELECT w.value AS word, s.* FROM json_each(:words) w JOIN sub_sessions s"
            " ON s.id = w.value OR (s.parent_cast = :cast AND s.name = w.value)"
            " WHERE s.room = :room AND s.scope = :scope AND s.parent IS :parent AND NOT s.blocking"
            " ORDER BY s.seq",
            {
                "words": json.dumps(words),
                "cast": spawner.cast_id,
                "room": spawner.conversation_id,
                "scope": spawner.scope,
                "parent": parent.id if parent else None,
            },
        )
        return {row["word"]: _sub_session(row) for row in rows}

    async def needs(self, tx: Transaction, sub_id: str) -> tuple[SubSession, ...]:
        """Return the dependencies of a sub-session, oldest first."""
        rows = await tx.rows(
            "SELECT s.* FROM sub_session_edges e JOIN sub_sessions s ON s.id = e.depends_on"
            " WHERE e.node = ? ORDER BY s.seq",
            (sub_id,),
        )
        return tuple(map(_sub_session, rows))

    async def open_rooms(self, tx: Transaction) -> list[tuple[str, str]]:
        """Return the conversations with open sub-sessions, each with its room."""
        rows = await tx.rows(
            "SELECT c.id, c.room_id FROM conversations c WHERE c.id IN"
            f" (SELECT DISTINCT room FROM sub_sessions WHERE {OPEN})"
        )
        return [(row["id"], row["room_id"] or "") for row in rows]

    async def release_held(self, tx: Transaction, rooms: Collection[str]) -> bool:
        """Release those that no further call of their turn can depend on; True if none is left."""
        kept = False
        turns = await tx.rows(
            "SELECT t.id, t.calls, c.state, (SELECT json_group_array(n) FROM observations o"
            "  WHERE o.turn_id = t.id AND o.state = 'completed') AS seen"
            " FROM turns t JOIN casts c ON c.id = t.cast_id"
            " WHERE t.id IN (SELECT parent_turn FROM sub_sessions WHERE held = 1"
            f"  AND room IN {_LISTED})",
            {"ids": json.dumps([*rooms])},
        )
        for turn in turns:
            # Parsed once: a turn may have many spawns, and this runs after each.
            if self._parsed_spawns[0] != turn["id"]:
                self._parsed_spawns = (turn["id"], spawns_of(json.loads(turn["calls"])))
            spawns = self._parsed_spawns[1] if turn["state"] == "running" else {}
            names = sorted(names_still_needed(spawns, set(json.loads(turn["seen"]))))
            await tx.execute(
                "UPDATE sub_sessions SET held = 0 WHERE held = 1 AND parent_turn = :turn"
                f" AND name NOT IN {_LISTED}",
                {"turn": turn["id"], "ids": json.dumps(names)},
            )
            kept = kept or bool(names)
        return not kept

    async def more_to_come(self, tx: Transaction, turn_id: str, n: int) -> bool:
        """Return True if a turn has another spawn after its n-th call."""
        return await tx.exists(
            "SELECT 1 FROM turns t JOIN json_each(t.calls) c WHERE t.id = ? AND c.key > ?"
            " AND c.value ->> 'name' = ? LIMIT 1",
            (turn_id, n, SPAWN),
        )

    async def ready(
        self, tx: Transaction, rooms: Collection[str], most: int
    ) -> tuple[SubSession, ...]:
        """Return those that may start now: all dependencies are done, and it is time (L-066)."""
        rows = await tx.rows(
            "SELECT * FROM sub_sessions WHERE state = 'waiting' AND missing = 0 AND held = 0"
            f" AND (not_before IS NULL OR not_before <= :now) AND room IN {_LISTED}"
            " ORDER BY seq LIMIT :most",
            {"now": stamp(self._clock.now()), "ids": json.dumps([*rooms]), "most": most},
        )
        return tuple(map(_sub_session, rows))

    async def next_due(self, tx: Transaction, rooms: Collection[str]) -> datetime | None:
        """Return the next start time of those that wait for nothing else."""
        (due,) = await tx.scalars(
            "SELECT min(not_before) FROM sub_sessions WHERE state = 'waiting'"
            " AND missing = 0 AND not_before IS NOT NULL AND not_before > :now"
            f" AND room IN {_LISTED}",
            {"now": stamp(self._clock.now()), "ids": json.dumps([*rooms])},
        )
        return moment(due) if due else None

    async def start(self, tx: Transaction, sub_id: str, cast_id: str, context: str) -> SubSession:
        """Start one; `context` is now complete."""
        row = await tx.row(
            "UPDATE sub_sessions SET state = 'running', cast_id = ?, context = ?, started_at = ?"
            " WHERE id = ? AND state = 'waiting' RETURNING *",
            (cast_id, context, stamp(self._clock.now()), sub_id),
        )
        return _existing(row, sub_id)

    async def interrupted(
        self, tx: Transaction, rooms: Collection[str]
    ) -> list[tuple[SubSession, int]]:
        """Return those that ran when the process ended, and their number of interruptions (L-068)."""
        rows = await tx.rows(
            "UPDATE sub_sessions SET interruptions = interruptions + 1 WHERE state = 'running'"
            f" AND NOT blocking AND room IN {_LISTED} RETURNING *",
            {"ids": json.dumps([*rooms])},
        )
        return [(_sub_session(row), row["interruptions"]) for row in rows]

    async def suspended(self, tx: Transaction, ids: Sequence[str]) -> None:
        """Undo the next interruption count of these: they are suspended in an orderly stop."""
        await tx.execute(
            "UPDATE sub_sessions SET interruptions = interruptions - 1 WHERE state = 'running'"
            f" AND id IN {_LISTED}",
            {"ids": json.dumps(ids)},
        )

    async def collect(self, tx: Transaction, sub_id: str, reason: str, result: str) -> None:
        """Store the result of one whose own spawns are still open."""
        await tx.execute(
            "UPDATE sub_sessions SET state = 'collecting', reason = ?, result = ? WHERE id = ?",
            (reason, result, sub_id),
        )

    async def collected(self, tx: Transaction, rooms: Collection[str]) -> tuple[SubSession, ...]:
        """Return those whose spawns have all ended after they were lifted, newest first."""
        rows = await tx.rows(
            f"SELECT * FROM sub_sessions s WHERE s.{OPEN} AND state = 'collecting' AND NOT blocking"
            f" AND room IN {_LISTED} AND NOT EXISTS (SELECT 1 FROM sub_sessions c"
            "  WHERE c.parent = s.id AND c.state IN ('waiting', 'running', 'collecting')"
            "  AND NOT c.blocking) ORDER BY seq DESC",
            {"ids": json.dumps([*rooms])},
        )
        return tuple(map(_sub_session, rows))

    async def still_open(self, tx: Transaction, ids: Collection[str]) -> set[str]:
        """Return those of these that have not ended."""
        query = f"SELECT id FROM sub_sessions WHERE {OPEN} AND id IN {_LISTED}"
        return set(await tx.scalars(query, {"ids": json.dumps([*ids])}))

    async def close(self, tx: Transaction, sub_id: str, reason: str, result: str) -> SubSession:
        """Store the end of one, with all it spawned."""
        row = await tx.row(
            f"UPDATE sub_sessions SET state = ?, reason = ?, result = ?, ended_at = ?"
            f" WHERE id = ? AND {OPEN} RETURNING *",
            (state_of(reason), reason, result, stamp(self._clock.now()), sub_id),
        )
        return _existing(row, sub_id)

    async def end_all(self, tx: Transaction, ids: Sequence[str]) -> None:
        """End these from outside."""
        await tx.execute(
            "UPDATE sub_sessions SET state = 'ended', reason = :reason, ended_at = :now"
            f" WHERE id IN {_LISTED}",
            {"reason": ABANDONED, "now": stamp(self._clock.now()), "ids": json.dumps(ids)},
        )

    async def release(self, tx: Transaction, sub_id: str) -> None:
        """Count one dependency less for each dependent of a finished sub-session."""
        await tx.execute(
            "UPDATE sub_sessions SET missing = missing - 1 WHERE id IN"
            " (SELECT node FROM sub_session_edges WHERE depends_on = ?)",
            (sub_id,),
        )

    async def fail_dependents(self, tx: Transaction, failed: SubSession) -> None:
        """Fail all direct and indirect dependents that still wait (L-064)."""
        await tx.execute(
            "WITH RECURSIVE doomed (id) AS (SELECT :id UNION SELECT e.node FROM doomed d"
            " JOIN sub_session_edges e ON e.depends_on = d.id)"
            " UPDATE sub_sessions SET state = 'failed', reason = :reason, ended_at = :now"
            " WHERE id IN (SELECT id FROM doomed) AND state = 'waiting'",
            {
                "id": failed.id,
                "reason": FAILED.format(label=failed.label),
                "now": stamp(self._clock.now()),
            },
        )

    async def split_workflows(self, tx: Transaction, room: str, after: int) -> None:
        """Give the sub-sessions of a room's turns after this place a workflow of their own."""
        await tx.execute(
            "UPDATE sub_sessions SET workflow = id WHERE room = ?"
            " AND (SELECT seq FROM turns WHERE id = room_turn) > ?",
            (room, after),
        )

    async def has_open_below(self, tx: Transaction, sub_id: str) -> bool:
        """Return True if one of its spawns has not ended."""
        return await tx.exists(
            f"SELECT 1 FROM sub_sessions WHERE parent = ? AND {OPEN} AND NOT blocking LIMIT 1",
            (sub_id,),
        )

    async def spawned_by(self, tx: Transaction, sub_id: str) -> tuple[SubSession, ...]:
        """Return its spawns, without abandoned ones, oldest first."""
        rows = await tx.rows(
            "SELECT * FROM sub_sessions WHERE parent = ? AND NOT blocking"
            " AND reason IS NOT ? ORDER BY seq",
            (sub_id, ABANDONED),
        )
        return tuple(map(_sub_session, rows))

    async def workflow_is_open(self, tx: Transaction, workflow: str) -> bool:
        """Return True if a sub-session of the workflow has not ended."""
        return await tx.exists(
            f"SELECT 1 FROM sub_sessions WHERE workflow = ? AND {OPEN} LIMIT 1", (workflow,)
        )

    async def of_workflow(self, tx: Transaction, workflow: str) -> tuple[SubSession, ...]:
        """Return the sub-sessions of a workflow, without abandoned ones, oldest first."""
        rows = await tx.rows(
            "SELECT * FROM sub_sessions WHERE workflow = ? AND reason IS NOT ? ORDER BY seq",
            (workflow, ABANDONED),
        )
        return tuple(map(_sub_session, rows))

    async def open_in(self, tx: Transaction, room: str, after: int = 0) -> tuple[SubSession, ...]:
        """Return the open sub-sessions that turns of a room after this place began."""
        rows = await tx.rows(
            f"SELECT s.* FROM sub_sessions s WHERE s.room = ? AND s.{OPEN}"
            " AND (SELECT seq FROM turns WHERE id = s.room_turn) > ? ORDER BY s.seq",
            (room, after),
        )
        return tuple(map(_sub_session, rows))

    async def open_below(self, tx: Transaction, sub_id: str) -> tuple[SubSession, ...]:
        """Return the open sub-sessions below another one, on all levels."""
        rows = await tx.rows(
            "WITH RECURSIVE below (id) AS (SELECT id FROM sub_sessions WHERE parent = :id"
            " UNION SELECT s.id FROM below b JOIN sub_sessions s ON s.parent = b.id)"
            f" SELECT * FROM sub_sessions WHERE {OPEN} AND id IN (SELECT id FROM below)",
            {"id": sub_id},
        )
        return tuple(map(_sub_session, rows))


async def end_orphans(tx: Transaction, now: datetime) -> None:
    """End the blocking sub-sessions of casts that have ended; lift the ones they spawned."""
    rows = await tx.rows(
        "UPDATE sub_sessions SET state = 'ended', reason = :reason, ended_at = :now"
        f" WHERE blocking = 1 AND {OPEN} AND parent_cast NOT IN"
        "  (SELECT id FROM casts WHERE state = 'running') RETURNING id",
        {"reason": ABANDONED, "now": stamp(now)},
    )
    if rows:
        await reparent(tx, [row["id"] for row in rows])


async def reparent(tx: Transaction, lost: Sequence[str] = ()) -> None:
    """Move the spawns of ended blocking sub-sessions up to the parents of these.

    Those of the `lost` ones that were collected before are collected again there.
    """
    while await tx.execute(
        f"UPDATE sub_sessions SET state = iif({OPEN}, state, 'collecting'),"
        " parent = (SELECT p.parent FROM sub_sessions p WHERE p.id = sub_sessions.parent)"
        f" WHERE NOT blocking AND reason IS NOT :abandoned AND (parent IN {_LISTED}"
        f"  OR {OPEN} AND parent IN (SELECT id FROM sub_sessions WHERE blocking AND NOT {OPEN}))",
        {"abandoned": ABANDONED, "ids": json.dumps(list(lost))},
    ):
        pass


def _existing(row: Row | None, sub_id: str) -> SubSession:
    if row is None:
        raise LookupError(sub_id)
    return _sub_session(row)


def _sub_session(row: Row) -> SubSession:
    return _node(row, settings=_settings(row))
