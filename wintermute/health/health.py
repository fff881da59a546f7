"""The state of each part, and the lines of a status made of them.

Each part notes its own state. Tasks appear with their ids, not their texts (T-055), because a
status is also shown in groups. Also stored here: rooms with a successor that the bot cannot follow
(F-013, X-030), the last trusted reading of the clock, the last good texts of files that people
edit, and whether the owner was notified of a broken one.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from wintermute.clock import Clock, ClockReading, boot_id, moment, stamp
from wintermute.config.schema import BudgetSettings as Ceilings
from wintermute.db import Database, Row, Transaction, add_to, counters, put_single, single
from wintermute.db.text_search import SearchableText
from wintermute.db.values import reader
from wintermute.ids import new_id
from wintermute.llm.calls import REFUSED, Amount, Budget, ModelCalls, RoleUsage
from wintermute.messages import PERSON
from wintermute.text import counted

HealthState = Literal["ok", "warn", "fail"]
EDITED = SearchableText("edited_files", ("text",), "name", empties=("text = NULL",))
AGAIN = "begin again with your client or /verify"
UNFIT = (
    f"what the client sent does not fit -> {AGAIN}; if that fails as well, use another client, or"
    " compare the fingerprints above"
)
ENDS = {
    "": f"the client gave no reason -> {AGAIN}",
    "m.user": f"cancelled in the client -> {AGAIN}; but if the emojis were different, do not:"
    " somebody may be between you and the bot",
    "m.mismatched_sas": "the emojis were different, somebody may be between you and the bot -> do not"
    " go on, see docs/encryption.md",
    "m.timeout": f"it took longer than ten minutes -> {AGAIN}",
    "m.unknown_transaction": f"the bot was restarted -> {AGAIN}",
    "m.unknown_method": "your client and the bot have no method in common -> use another client",
    "m.accepted": "another session of the bot answered -> go on with that one",
    "m.key_mismatch": UNFIT,
    "m.mismatched_commitment": UNFIT,
    "m.invalid_message": UNFIT,
    "m.unexpected_message": UNFIT,
}
"""The reason of a cancelled verification and what to do, by its code in Matrix."""
MOST_NEXT = 5
MOST_PROMISES = 5
GRACE = timedelta(minutes=5)
"""A reminder that is delivered later than this is late (T-038)."""
LATELY = timedelta(days=1)
UNSAID = (
    "SELECT task_id FROM occurrences o WHERE state = 'claimed' AND mode = 'reminder' AND due_at < ?"
    " AND (SELECT p.changed_to FROM tasks t JOIN people p ON t.scope = 'person:' || p.user_id"
    "  WHERE t.id = o.task_id) IS {} ORDER BY due_at"
)
"""Reminders that are overdue. NULL: all is well with the person's identity; NOT NULL: it has changed."""
MOST_ROOMS = 5
CLOCK = "clock"
LEARNING = {
    "harvest": "looking for memories",
    "split": "splitting a long text",
    "reconstruct": "merging memories",
    "core": "updating core memory",
}
DROPPED = "not learnt"
"""The first part of a counter's name, followed by the month and the reason."""
FAILING = 3
"""The failures in a row after which a retried job is reported."""
TO_FORGET = {
    "forget": "{n} still to be finished",
    "scrub": "erased; the file of the database is cleaned after a minute without messages",
}
UNLIMITED = Ceilings()
MOST_NAMED = 20
MANY_CALLS = 20
LEAST_CACHED = 1024
"""The shortest prompt, in tokens, that all providers cache."""
ADVICE = {
    "homeserver": " -> see that it runs, and check matrix.homeserver in config.yaml",
    "model": " -> see that its server runs; `wintermute check` says more",
}
PAST_EVENTS = frozenset({"bridge", "casts", "restored"})
"""Parts that report a past event: a day later it is no warning any more."""
WELL = "All is well. {} shows every part."


@dataclass(frozen=True, slots=True)
class PartHealth:
    """The state of one part. `since`: the beginning of this state."""

    part: str
    state: HealthState
    detail: str
    since: datetime


_part = reader(PartHealth)


class Health:
    """The store of states and counters. It writes only changes."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[str, tuple[HealthState, str]] = {}

    async def note(self, part: str, state: HealthState, detail: str = "") -> None:
        """Record a part's state; an unchanged one costs nothing."""
        if self._known.get(part) == (state, detail):
            return
        kept = await self.part(part)
        if kept is not None and (kept.state, kept.detail) == (state, detail):
            self._known[part] = (state, detail)
            return
        async with self._database.transaction() as tx:
            await self.note_in(tx, part, state, detail)
        self._known[part] = (state, detail)

    async def note_in(
        self, tx: Transaction, part: str, state: HealthState, detail: str = ""
    ) -> None:
        """Record a part's state within a transaction."""
        now = stamp(self._clock.now())
        await tx.execute(
            "INSERT INTO health (part, state, detail, since, updated_at) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (part) DO UPDATE SET detail = excluded.detail,"
            " updated_at = excluded.updated_at, state = excluded.state,"
            " since = CASE WHEN health.state = excluded.state THEN health.since"
            " ELSE excluded.since END",
            (part, state, detail, now, now),
        )
        self._known.pop(part, None)  # the transaction may still fail

    async def count_in(self, tx: Transaction, name: str, by: int) -> None:
        """Add to a counter."""
        if by:
            await add_to(tx, name, by)

    async def failed(self, name: str) -> None:
        """Count one failure of an optional part."""
        async with self._database.transaction() as tx:
            await self.count_in(tx, f"{name} failed", 1)

    async def parts(self) -> list[PartHealth]:
        """Return the states of all parts."""
        rows = await self._database.rows("SELECT * FROM health ORDER BY part")
        return [_part(row) for row in rows]

    async def part(self, name: str) -> PartHealth | None:
        """Return the state of one part."""
        return next((part for part in await self.parts() if part.part == name), None)


async def people(database: Database) -> tuple[HealthState, str]:
    """List the people whose identity was fetched: they verified the bot, did not, or changed it (X-034, X-035)."""
    rows = await database.rows(
        "SELECT user_id, master_key, changed_to, verified FROM people ORDER BY user_id"
    )
    named = _shortened_list([f"{row['user_id']} {_trust(row)}" for row in rows], MOST_NAMED)
    changed = any(row["changed_to"] is not None for row in rows)
    return ("warn" if changed else "ok"), "; ".join(named) or "no identities fetched yet"


def _shortened_list(names: Sequence[str], most: int) -> list[str]:
    """Return the first names, and the number of the others."""
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return [*names[:most], *more]


def _trust(row: Row) -> str:
    if not row["master_key"]:
        return "has no identity"
    if row["changed_to"] is not None:
        advice = f"ask them, then `wintermute matrix trust {row['user_id']}`"
        return f"has another identity now -> {advice}"
    return (
        "has verified this bot"
        if row["verified"] == row["master_key"]
        else "has not verified this bot"
    )


async def untrusted(database: Database) -> tuple[HealthState, str]:
    """Report messages that wait until their sender's session is verified."""
    rows = await database.rows(  # both states, so that SQLite uses the index of both
        "SELECT sender, count(*) AS n, p.changed_to IS NOT NULL AS changed,"
        " p.user_id IS NULL AS unseen FROM inbox LEFT JOIN people p ON p.user_id = sender"
        " WHERE state IN ('locked', 'untrusted') AND state = 'untrusted'"
        " GROUP BY sender ORDER BY sender LIMIT 20"
    )
    named = [f"{counted(row['n'], 'message')} of {row['sender']} {_wait(row)}" for row in rows]
    if not named:
        return "ok", "no messages wait for a session to be verified"
    return "warn", "; ".join(named)


def _wait(row: Row) -> str:
    verb = "waits" if row["n"] == 1 else "wait"
    if row["changed"]:
        advice = f"`wintermute matrix trust {row['sender']}`"
        return f"{verb} until their identity is trusted -> {advice}"
    if row["unseen"]:
        return f"{verb} until their homeserver says which sessions are theirs"
    return f"{verb} -> they verify that session with another one of theirs"


async def verifications(database: Database) -> list[tuple[str, HealthState, str]]:
    """List the latest verification of each person, newest first: name, state and text."""
    rows = await database.rows(
        "SELECT user_id, device_id, phase, shown, code, max(began_at) AS began FROM verifications"
        " GROUP BY user_id ORDER BY began DESC LIMIT 5"
    )
    return [(f"verification with {row['user_id']}", *verification_step(row)) for row in rows]


def verification_step(row: Row) -> tuple[HealthState, str]:
    """Return the state of a verification, in words."""
    device = f" (session {row['device_id']})" if row["device_id"] else ""
    if row["phase"] == "done":
        return "ok", f"done{device}"
    if row["phase"] == "cancelled":
        return "warn", f"cancelled{device}: {ENDS.get(row['code'], row['code'])}"
    if row["shown"]:
        return "ok", f"compare{device}: {row['shown']}"
    return "ok", f"under way{device}: {row['phase']}"


async def task_health(database: Database, clock: Clock, zone: ZoneInfo) -> tuple[HealthState, str]:
    """Return the state of all tasks, in words."""
    now = clock.now()
    overdue = stamp(now - GRACE)
    wrong = {
        "overdue": await database.scalars(
            "SELECT id FROM tasks WHERE status = 'active' AND held = 0 AND next_due < ?"
            " ORDER BY next_due, seq",
            (overdue,),
        ),
        "not said yet": await database.scalars(UNSAID.format("NULL"), (overdue,)),
        "held until a changed identity is trusted (see people)": await database.scalars(
            UNSAID.format("NOT NULL"), (overdue,)
        ),
        "due, but I have no room to post it in": await database.scalars(
            "SELECT id FROM tasks WHERE held = 1 AND status = 'active' ORDER BY seq"
        ),
        # The tasks whose last run failed, with the number of failures in a row.
        "failed": await database.scalars(
            "SELECT id || iif(failures > 1, ' (' || failures || ' in a row)', '') FROM tasks"
            " WHERE status IN ('active', 'paused') AND failures > 0 ORDER BY seq"
        ),
    }
    paused = await database.scalars("SELECT id FROM tasks WHERE status = 'paused' ORDER BY seq")
    # Late because the program was not running, or because a message could not be sent.
    (late,) = await database.scalars(
        "SELECT count(*) FROM occurrences WHERE state = 'done' AND ended_at >= ?"
        " AND (missed > 0 OR mode = 'reminder'"
        "  AND unixepoch(ended_at) - unixepoch(due_at) > ?)",
        (stamp(now - LATELY), GRACE.total_seconds()),
    )
    counted = [f"{len(ids)} {what}: {_named(ids)}" for what, ids in wrong.items() if ids]
    counted += [f"{len(paused)} paused: {_named(paused)}"] if paused else []
    counted += [f"{late} late since yesterday"] if late else []
    text = "; ".join([await _next(database, zone), *counted])
    return "warn" if any(wrong.values()) else "ok", text


async def _next(database: Database, zone: ZoneInfo) -> str:
    rows = await database.rows(
        "SELECT id, next_due FROM tasks WHERE status = 'active' AND held = 0"
        " AND next_due IS NOT NULL ORDER BY next_due, seq LIMIT ?",
        (MOST_NEXT,),
    )
    named = [
        f"{row['id']} {moment(row['next_due']).astimezone(zone):%Y-%m-%d %H:%M}" for row in rows
    ]
    return f"next {', '.join(named)}" if named else "nothing is due"


def _named(ids: Sequence[str]) -> str:
    return ", ".join(_shortened_list(ids, MOST_PROMISES))


async def unfollowed_rooms(database: Database) -> str:
    """Name the rooms whose successor the bot cannot follow; "" if there are none."""
    in_clear = await database.rows(
        "SELECT old.room_id AS old, new.room_id AS new FROM rooms old JOIN rooms new"
        " ON new.room_id = old.successor AND new.predecessor = old.room_id AND new.state = 'joined'"
        " WHERE old.moved_to = '' AND old.encrypted AND NOT new.encrypted ORDER BY old.room_id"
    )
    away = await database.rows(
        "SELECT old.room_id AS old, old.successor AS new FROM rooms old LEFT JOIN rooms new"
        " ON new.room_id = old.successor AND new.state = 'joined'"
        " WHERE old.moved_to = '' AND old.successor <> '' AND old.state = 'joined'"
        " AND new.room_id IS NULL AND EXISTS"
        "  (SELECT 1 FROM conversations c WHERE c.room_id = old.room_id) ORDER BY old.room_id"
    )
    lines = [
        f"{row['new']} follows the encrypted {row['old']} in clear -> turn on encryption in it"
        for row in in_clear
    ]
    lines += [
        f"{row['old']} was replaced by {row['new']}, where I am not -> invite me there"
        for row in away
    ]
    return "; ".join(_shortened_list(lines, MOST_ROOMS))


class TrustedReadings:
    """The store of the last trusted reading of the clock."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def last(self) -> ClockReading | None:
        """Return the reading; None after a restart of the machine, since the monotonic clock began anew."""
        kept = await single(self._database, CLOCK)
        if kept is None or not kept["boot"] or kept["boot"] != boot_id():
            return None
        return ClockReading(moment(kept["wall"]), kept["monotonic"])

    async def keep(self, reading: ClockReading) -> None:
        """Store the reading."""
        async with self._database.transaction() as tx:
            values = {
                "wall": stamp(reading.wall),
                "monotonic": reading.monotonic,
                "boot": boot_id(),
            }
            await put_single(tx, CLOCK, values)


class EditedFiles:
    """The store of the files that people edit, by the names that prompt and tools use (F-031)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def text(self, name: str) -> str | None:
        """Return the last good text of a file; None if it is unknown."""
        row = await self._database.row("SELECT text FROM edited_files WHERE name = ?", (name,))
        return row["text"] if row else None

    async def texts(self, folder: str) -> dict[str, str]:
        """Return the last good texts of the files in a folder, by their names in it."""
        rows = await self._database.rows(
            "SELECT substr(name, length(:folder) + 2) AS name, text FROM edited_files"
            " WHERE text IS NOT NULL AND substr(name, 1, length(:folder) + 1) = :folder || '/'",
            {"folder": folder},
        )
        return {row["name"]: row["text"] for row in rows}

    async def keep(self, texts: Iterable[tuple[str, str]]) -> None:
        """Store the texts of files, as (name, text)."""
        async with self._database.transaction() as tx:
            await tx.execute_many(
                "INSERT INTO edited_files (name, text) VALUES (?, ?) ON CONFLICT (name) DO UPDATE"
                " SET text = excluded.text WHERE text IS NOT excluded.text",
                list(texts),
            )

    async def notified(self) -> set[str]:
        """Return the unusable files that the owner was notified of."""
        return set(await self._database.scalars("SELECT name FROM edited_files WHERE notified"))

    async def note_notified(self, tx: Transaction, names: Collection[str]) -> None:
        """Note that the owner was notified of exactly these files."""
        listed = json.dumps(list(names))
        await tx.execute(
            "UPDATE edited_files SET notified = 0"
            " WHERE notified AND name NOT IN (SELECT value FROM json_each(?))",
            (listed,),
        )
        await tx.execute(
            "INSERT INTO edited_files (name, notified) SELECT value, 1 FROM json_each(?) WHERE true"
            " ON CONFLICT (name) DO UPDATE SET notified = 1",
            (listed,),
        )


@dataclass(frozen=True, slots=True)
class StatusLine:
    """One line of a status."""

    name: str
    state: HealthState | Literal["none"]
    text: str
    numbers: Mapping[str, float] | None = None
    """The figures of the text, for programs."""


def only_problems(findings: Iterable[StatusLine]) -> tuple[StatusLine, ...]:
    """Return the lines of a status that are not ok; each says what to do (U-012)."""
    return tuple(each for each in findings if each.state != "ok")


async def status_lines(
    database: Database, clock: Clock, timezone: str, ceilings: Ceilings = UNLIMITED
) -> tuple[StatusLine, ...]:
    """Return all lines of a status from the database."""
    zone = ZoneInfo(timezone)
    now = clock.now().astimezone(zone)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    old = await database.scalars(
        "SELECT part FROM health WHERE updated_at < ?", (stamp(now - LATELY),)
    )
    lines = []
    for part in await Health(database, clock).parts():
        since = f"(since {part.since.astimezone(zone):%Y-%m-%d %H:%M})"
        state = "ok" if part.part in PAST_EVENTS.intersection(old) else part.state
        advice = ADVICE.get(part.part, "") if state != "ok" and "->" not in part.detail else ""
        lines.append(StatusLine(part.part, state, f"{part.detail} {since}{advice}".strip()))
    (waiting,) = await database.scalars(
        "SELECT count(*) FROM inbox WHERE state IN ('waiting', 'casting') AND kind <> 'command'"
    )
    lines.append(StatusLine("inbox", "ok", f"{waiting} waiting for an answer"))
    lines.append(await _outbox(database))
    if waits := await unfollowed_rooms(database):
        lines.append(StatusLine("rooms", "warn", waits))
    lines += await _sub_sessions(database)
    lines += await _jobs(database)
    lines += await _learning(database, now, zone)
    lines += await _old_copies(database, zone)
    lines.append(StatusLine("tasks", *await task_health(database, clock, zone)))
    lines += await _decryption(database, midnight)
    lines.append(StatusLine("people", *await people(database)))
    lines.append(StatusLine("unverified sessions", *await untrusted(database)))
    if malformed := await single(database, "malformed"):
        lines.append(StatusLine("malformed events", "ok", f"{malformed} skipped"))
    if failed := await single(database, "memory search failed"):
        lines.append(StatusLine("memory search", "ok", f"failed {failed} times so far"))
    lines += await _usage(database, clock, midnight, timezone, ceilings)
    return tuple(lines)


async def _outbox(database: Database) -> StatusLine:
    (waiting,) = await database.scalars("SELECT count(*) FROM outbox WHERE state = 'waiting'")
    stuck = await database.rows(
        "SELECT room_id, problem, count(*) AS n FROM outbox WHERE state = 'stuck'"
        " GROUP BY room_id, problem"
    )
    if not stuck:
        return StatusLine("outbox", "ok", f"{waiting} to be sent")
    named = "; ".join(f"{row['n']} in {row['room_id']}: {row['problem']}" for row in stuck)
    return StatusLine(
        "outbox",
        "warn",
        f"{waiting} to be sent, held: {named} -> they are sent as soon as that is allowed",
    )


async def _old_copies(database: Database, zone: ZoneInfo) -> list[StatusLine]:
    """Name database copies from before an upgrade: they still hold forgotten texts (M-030)."""
    named = [
        f"{copy.path.name} from before an upgrade may contain texts forgotten since; it is deleted on"
        f" {copy.until.astimezone(zone):%Y-%m-%d}, or earlier by you"
        for copy in await database.copies()
    ]
    return [StatusLine("old copies", "ok", "; ".join(named))] if named else []


async def _jobs(database: Database) -> list[StatusLine]:
    """Report pending and stopped jobs; no line if there are none."""
    rows = await database.rows("SELECT * FROM jobs WHERE state <> 'done'")
    states = Counter(row["state"] for row in rows)
    wrong = {"stopped": list[str](), "tried again": list[str]()}
    for row in rows:
        whose, why = row["scope"].removeprefix(PERSON) or "all", row["last_error"] or "unknown"
        if (stopped := row["state"] == "failed") or row["failures"] >= FAILING:
            of = "stopped" if stopped else "tried again"
            wrong[of].append(f"{row['name']} of {whose}: {why}")
    details = "".join(f", {len(n)} {what}: {'; '.join(n)}" for what, n in wrong.items() if n)
    text = f"{states['running']} running, {states['waiting']} waiting{details}"
    state: HealthState = "fail" if wrong["stopped"] else "warn" if details else "ok"
    lines = [StatusLine("jobs", state, text)] if rows else []
    left = [
        text.format(n=n)
        for name, text in TO_FORGET.items()
        if (n := sum(row["name"] == name for row in rows))
    ]
    return [*lines, StatusLine("forgetting", "ok", "; ".join(left))] if left else lines


async def _learning(database: Database, now: datetime, zone: ZoneInfo) -> list[StatusLine]:
    """Report the learning from conversations; no line if there never was any. No text of a conversation."""
    (queued,) = await database.scalars(
        "SELECT count(*) FROM facts WHERE queued AND retired_at IS NULL AND NOT ended"
        " AND valid_to IS NULL"
    )
    jobs = await database.rows(
        "SELECT name, waits_for, count(*) AS n, min(not_before) AS due FROM jobs"
        " WHERE state = 'waiting' AND name IN (SELECT value FROM json_each(?))"
        " GROUP BY name, waits_for ORDER BY min(created_at)",
        (json.dumps(list(LEARNING)),),
    )
    last = await database.row(
        "SELECT ended_at, room_id, coalesce(progress ->> '$.picked', 0) AS picked FROM jobs"
        " JOIN conversations c ON c.id = args ->> '$.conversation'"
        " WHERE name = 'harvest' AND state = 'done' ORDER BY ended_at DESC LIMIT 1"
    )
    refused = await single(database, REFUSED)
    details = [f"{counted(queued, 'memory')} to be merged with the others"] if queued else []
    details += [_waiting(row, zone) for row in jobs]
    if last:
        details.append(
            f"last read {_at(last['ended_at'], zone)}, {last['room_id']}:"
            f" {counted(last['picked'], 'memory')} picked up"
        )
    if dropped := await counters(database, f"{DROPPED} {now:%Y-%m} "):
        many = counted(sum(dropped.values()), "learnt fact")
        why = ", ".join(f"{times} {reason}" for reason, times in dropped.items())
        details.append(f"{many} dropped this month: {why}")
    numbers = {
        "queued": queued,
        "waiting": sum(row["n"] for row in jobs),
        "picked": last["picked"] if last else 0,
        "refused": refused["times"] if refused else 0,
    }
    if refused:
        details.append(
            f"{counted(refused['times'], 'answer')} of models refused, the last"
            f" {_at(refused['at'], zone)} ({refused['role']}): {refused['reason']}"
        )
    return [StatusLine("learning", "ok", "; ".join(details), numbers)] if details else []


def _waiting(row: Row, zone: ZoneInfo) -> str:
    """Describe waiting jobs with one name and one reason."""
    many = f" ({row['n']} times)" if row["n"] > 1 else ""
    if row["due"] is None:
        return f"{LEARNING[row['name']]}{many} waits for its turn"
    why = f": {row['waits_for']}" if row["waits_for"] else ""
    return f"{LEARNING[row['name']]}{many} waits until {_at(row['due'], zone)}{why}"


def _at(when: str, zone: ZoneInfo) -> str:
    return f"{moment(when).astimezone(zone):%Y-%m-%d %H:%M}"


async def _sub_sessions(database: Database) -> list[StatusLine]:
    """Name the running, then the waiting sub-sessions (L-068); no line if there are none."""
    rows = await database.rows(
        "SELECT id, iif(state = 'waiting', 'waiting', 'running') AS doing FROM sub_sessions"
        " WHERE state IN ('waiting', 'running', 'collecting') AND (NOT blocking OR parent_cast IN"
        "  (SELECT id FROM casts WHERE state = 'running')) ORDER BY doing, seq"
    )
    running = sum(row["doing"] == "running" for row in rows)
    # Ids, because names tell the subject and a status is also shown in groups.
    named = _shortened_list([f"{row['id']} {row['doing']}" for row in rows], MOST_NAMED)
    text = f"{running} running, {len(rows) - running} waiting: {', '.join(named)}"
    return [StatusLine("sub-sessions", "ok", text)] if rows else []


async def _decryption(database: Database, midnight: datetime) -> list[StatusLine]:
    """Count decrypted messages, and name the people who have to send one of today again."""
    locked = await database.rows("SELECT sender, received_at FROM inbox WHERE state = 'locked'")
    new = Counter(row["sender"] for row in locked if row["received_at"] >= stamp(midnight))
    good = await single(database, "decrypted") or 0
    bad = await single(database, "undecryptable") or 0
    text = f"{good} messages decrypted, {bad} only later, {len(locked)} still locked"
    lines = [StatusLine("decryption", "ok", text)]
    named = [f"{counted(n, 'message')} of {sender}" for sender, n in sorted(new.items())]
    senders = ", ".join(_shortened_list(named, MOST_NAMED))
    unreadable = f"I cannot read {senders} -> ask to have them sent again"
    return [StatusLine("locked messages", "warn", unreadable), *lines] if new else lines


async def _usage(
    database: Database, clock: Clock, midnight: datetime, timezone: str, ceilings: Ceilings
) -> list[StatusLine]:
    calls = ModelCalls(database, clock, new_id)
    spent = await calls.usage_since(midnight)
    before = await calls.usage_since(midnight - timedelta(days=1), midnight)
    lines = _bill("today", spent) or [StatusLine("today", "ok", "no model calls")]
    lines += _bill("yesterday", before)
    if ceilings == UNLIMITED:
        return lines
    amount = await Budget(database, clock, new_id, ceilings, timezone).spent_today()
    return [_budget(ceilings, amount, sum(used.refused for used in spent.values())), *lines]


def _bill(day: str, spent: Mapping[str, RoleUsage]) -> list[StatusLine]:
    """Report the usage of each role on a day, after the sum if there are several."""
    lines = [
        StatusLine(f"{day}, {role}", "ok", _used(used) + _advice(role, used), asdict(used))
        for role, used in spent.items()
    ]
    if len(lines) > 1:
        first, *rest = spent.values()
        whole = sum(rest, start=first)
        lines.insert(0, StatusLine(day, "ok", _used(whole), asdict(whole)))
    return lines


def _used(used: RoleUsage) -> str:
    """Return calls, tokens read (and cached), tokens written, and USD if prices are known."""
    read = f"{used.tokens_in:,} tokens read, {used.tokens_cached:,} of them from the cache"
    usd = f"; {used.usd:.4f} USD" if used.usd else ""
    return f"{counted(used.calls, 'call')}; {read}; {used.tokens_out:,} written{usd}"


def _advice(role: str, used: RoleUsage) -> str:
    """Return advice if many requests with the same beginning were never cached."""
    is_long = used.tokens_in >= used.calls * LEAST_CACHED
    if role == "base" and used.calls >= MANY_CALLS and is_long and not used.tokens_cached:
        return "; the server reports no cache -> see docs/models.md"
    return ""


def _budget(ceilings: Ceilings, used: Amount, refused: int) -> StatusLine:
    """Report the use of each budget (L-086); running calls count with their worst case."""
    parts = []
    if ceilings.tokens_per_day is not None:
        parts.append(f"{used.tokens} of {ceilings.tokens_per_day} tokens")
    if ceilings.usd_per_day is not None:
        parts.append(f"{used.usd:.4f} of {ceilings.usd_per_day:g} USD")
    text = f"{' and '.join(parts)} used today"
    if not refused:
        return StatusLine("budget", "ok", text)
    advice = "wait for midnight or raise llm.budget in config.yaml"
    return StatusLine(
        "budget", "warn", f"{text}, no room for {counted(refused, 'call')} -> {advice}"
    )
