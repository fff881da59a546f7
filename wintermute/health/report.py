"""The facts that `wintermute status` and `/status` show."""

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from wintermute.clock import Clock
from wintermute.config.schema import Budget as Ceilings
from wintermute.db import Database
from wintermute.health.promises import promises
from wintermute.health.rooms import left_behind
from wintermute.health.store import Health, HealthState
from wintermute.health.trust import people, untrusted
from wintermute.ids import new_id
from wintermute.llm.budget import Amount, Budget
from wintermute.llm.calls import ModelCalls
from wintermute.text import counted

UNLIMITED = Ceilings()
MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a status."""

    name: str
    state: HealthState
    text: str


async def gather(
    database: Database, clock: Clock, timezone: str, ceilings: Ceilings = UNLIMITED
) -> tuple[Fact, ...]:
    """What the database says about the daemon, the worst not hidden."""
    zone = ZoneInfo(timezone)
    parts = await Health(database, clock).parts()
    facts = [
        Fact(part.part, part.state, f"{part.detail} (since {_local(part.since, zone)})".strip())
        for part in parts
    ]
    facts.append(await _inbox(database))
    facts.append(await _outbox(database))
    if waits := await left_behind(database):
        facts.append(Fact("rooms", "warn", waits))
    facts.append(await _sub_sessions(database))
    facts.append(Fact("tasks", *await promises(database, clock, zone)))
    facts.append(await _decryption(database))
    facts.append(Fact("people", *await people(database)))
    facts.append(Fact("unverified sessions", *await untrusted(database)))
    facts.append(await _malformed(database))
    facts += await _searches(database)
    facts += await _usage(database, clock, timezone, ceilings)
    return tuple(facts)


def _local(when: datetime, zone: ZoneInfo) -> str:
    return when.astimezone(zone).strftime("%Y-%m-%d %H:%M")


async def _number(database: Database, sql: str) -> int:
    row = await database.row(sql)
    return int(row[0] or 0) if row else 0


async def _inbox(database: Database) -> Fact:
    waiting = await _number(
        database,
        "SELECT count(*) FROM inbox WHERE state IN ('waiting', 'casting') AND kind <> 'command'",
    )
    return Fact("inbox", "ok", f"{waiting} waiting for an answer")


async def _outbox(database: Database) -> Fact:
    waiting = await _number(database, "SELECT count(*) FROM outbox WHERE state = 'waiting'")
    stuck = await database.rows(
        "SELECT room_id, problem, count(*) AS n FROM outbox WHERE state = 'stuck'"
        " GROUP BY room_id, problem"
    )
    if not stuck:
        return Fact("outbox", "ok", f"{waiting} to be sent")
    named = "; ".join(f"{row['n']} in {row['room_id']}: {row['problem']}" for row in stuck)
    return Fact(
        "outbox", "warn", f"{waiting} to be sent, held: {named} -> they are said once they may be"
    )


async def _sub_sessions(database: Database) -> Fact:
    """L-068: those at work, then those that wait."""
    rows = await database.rows(
        "SELECT id, iif(state = 'waiting', 'waiting', 'running') AS doing FROM sub_sessions"
        " WHERE state IN ('waiting', 'running', 'collecting') AND (NOT blocking OR parent_cast IN"
        "  (SELECT id FROM casts WHERE state = 'running')) ORDER BY doing, seq"
    )
    running = sum(row["doing"] == "running" for row in rows)
    # Not by their names, which say what they are about: a status is also asked for in groups.
    named = [f"{row['id']} {row['doing']}" for row in rows[:MOST_NAMED]]
    more = [f"{len(rows) - MOST_NAMED} more"] if len(rows) > MOST_NAMED else []
    listed = f": {', '.join([*named, *more])}" if rows else ""
    text = f"{running} running, {len(rows) - running} waiting{listed}"
    return Fact("sub-sessions", "ok", text)


async def _counter(database: Database, name: str) -> int:
    row = await database.row("SELECT value FROM counters WHERE name = ?", (name,))
    return int(row["value"]) if row else 0


async def _decryption(database: Database) -> Fact:
    locked = await _number(database, "SELECT count(*) FROM inbox WHERE state = 'locked'")
    good = await _counter(database, "decrypted")
    bad = await _counter(database, "undecryptable")
    text = f"{good} messages decrypted, {bad} not at first, {locked} still locked"
    return Fact("decryption", "warn" if locked else "ok", text)


async def _malformed(database: Database) -> Fact:
    count = await _counter(database, "malformed")
    return Fact("malformed events", "ok", f"{count} passed over")


async def _searches(database: Database) -> list[Fact]:
    failed = await _counter(database, "memory search failed")
    return [Fact("memory search", "warn", f"failed {failed} times so far")] if failed else []


async def _usage(database: Database, clock: Clock, timezone: str, ceilings: Ceilings) -> list[Fact]:
    now = clock.now().astimezone(ZoneInfo(timezone))
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    spent = await ModelCalls(database, clock, new_id).usage_since(midnight)
    facts = [
        Fact(
            f"today, {role}",
            "ok",
            f"{counted(used.calls, 'call')}, {used.tokens_in + used.tokens_out} tokens, {used.usd:.4f} USD",
        )
        for role, used in spent.items()
    ] or [Fact("today", "ok", "no model calls")]
    if ceilings == UNLIMITED:
        return facts
    amount = await Budget(database, clock, new_id, ceilings, timezone).spent_today()
    return [_budget(ceilings, amount, sum(used.refused for used in spent.values())), *facts]


def _budget(ceilings: Ceilings, used: Amount, refused: int) -> Fact:
    """L-086: what counts against each ceiling, calls under way at their worst case."""
    parts = []
    if ceilings.tokens_per_day is not None:
        parts.append(f"{used.tokens} of {ceilings.tokens_per_day} tokens")
    if ceilings.usd_per_day is not None:
        parts.append(f"{used.usd:.4f} of {ceilings.usd_per_day:g} USD")
    text = f"{' and '.join(parts)} used today"
    if not refused:
        return Fact("budget", "ok", text)
    advice = "wait for midnight or raise llm.budget in config.yaml"
    return Fact("budget", "warn", f"{text}, no room for {counted(refused, 'call')} -> {advice}")
