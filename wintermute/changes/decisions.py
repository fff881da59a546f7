"""Decisions: what is wanted, with all that it takes to do it, until it is done or is no question any more.

    planned ─┬─▶ done ──▶ undone: an undo has all that it changed
             ╰─▶ open ─┬▶ done (a person said yes)
                       ├▶ refused ─▶ open (they think better of it)
                       ╰▶ outdated: what it was about is another by now, or nobody answered

A night numbers what it wants over all scopes, `NIGHT#N`; what else is wanted has no number until a
night asks about it. Whoever reads sees those of one scope.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import blake2b
from typing import Literal

from wintermute.changes.change_sets import KEPT, Change, ItemKind
from wintermute.changes.texts import state_of
from wintermute.clock import Clock, stamp
from wintermute.db import Database, Transaction
from wintermute.db.text_search import OURS_SINCE, SCOPES, Kept
from wintermute.db.values import columns, insert, reader, stored
from wintermute.messages import Json
from wintermute.secret_shapes import secret_kind, without_secrets

DecisionState = Literal["planned", "done", "open", "refused", "outdated", "undone"]
OPEN: tuple[DecisionState, ...] = ("open",)
PLANNED: tuple[DecisionState, ...] = ("planned",)
WAITS = timedelta(days=14)
"""How long a question waits for an answer (M-079)."""
WEEK = timedelta(days=7)
MERGED, LIST, PAGE_LINES = "merged", "list", "page lines"
LINES = "lines"
"""The kind of question about memories whose lines went all at once (M-090)."""
NOT_YET = datetime.min.replace(tzinfo=UTC)
FORGOTTEN = "forgotten"
"""The reason of one whose words somebody asked to be forgotten."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A change that is wanted, or was made. `names`: what it changed, each as kind and id.

    `plan`: what its kind does it with, or the `files` that get another text; `outside`: its words may
    come from a page, a file, a stranger. `loses`: how many facts of the scope go by it. `state`: what is
    `open` waits for a person's yes. `digest`: what is not to be asked again. `night`, `n`: the number
    under which a night asks; "" and 0 where none does yet.
    """

    kind: str
    before: tuple[str, ...]
    after: str
    reason: str
    plan: Json
    evidence: tuple[str, ...] = ()
    loses: int = 0
    state: DecisionState = "planned"
    digest: str = ""
    change_set: str | None = None
    seq: int = 0
    night: str = ""
    n: int = 0
    scope: str = ""
    phase: str = ""
    names: tuple[tuple[str, str], ...] = ()
    at: datetime = NOT_YET

    @property
    def id(self) -> str:
        """The name of it for people; what no night asks about has none, and programs its `seq`."""
        return f"{self.night}#{self.n}" if self.night else str(self.seq)

    @property
    def from_outside(self) -> bool:
        """Tell if its words may come from outside: no model is told them (L-037)."""
        return bool(self.plan.get("outside"))

    @property
    def file(self) -> Json | None:
        """The first file that it gives another text: its kind, its item, and the text."""
        return next(iter(self.plan.get("files", ())), None)

    def file_changes(self) -> list[Change]:
        """The changes of files that a plan names; what is to go comes last, when the rest is in place."""
        found = [
            Change(f["kind"], f["item"], state_of(f["was"]), state_of(f["text"]), self.evidence)
            for f in self.plan.get("files", ())
        ]
        return sorted(found, key=lambda each: each.after is None)


@dataclass(frozen=True, slots=True)
class Answers:
    """What people of a scope are asked, or have answered. `wishes`: each as kind and plan.

    `kept`: facts of which somebody said that they stay as they are, or put them back.
    """

    wishes: frozenset[str]
    kept: frozenset[str]

    def knows(self, wanted: Decision) -> bool:
        """Tell if just this is asked, or was answered."""
        return _wish(wanted.kind, wanted.plan) in self.wishes

    def disputes(self, wanted: Decision) -> bool:
        """Tell if it is about what somebody wanted to keep: a night does not decide that alone."""
        return any(each["id"] in self.kept for each in wanted.plan.get("members", ()))


def _wish(kind: str, plan: Json) -> str:
    return json.dumps([kind, plan], sort_keys=True)


def digest_of(*shown: str) -> str:
    """A digest of what was asked about, in which order does not matter."""
    return blake2b("\0".join(sorted(shown)).encode(), digest_size=16).hexdigest()


def text_wish(kind: ItemKind, item: str, text: str | None, reason: str) -> Decision:
    """A file that would get another text, or go: a person says yes to it."""
    return Decision(
        f"{kind} removed" if text is None else f"{kind} changed",
        (item if kind == "page" else "core memory",),
        text or "",
        reason,
        {"files": [{"kind": kind, "item": item, "was": None, "text": text}]},
        state="open",
        digest=digest_of(kind, item, text or ""),
    )


DECISIONS = Kept(
    "decisions",
    ("before", "after", "reason", "plan"),
    of=f"scope IN {SCOPES}",
    ours=OURS_SINCE.replace("created_at", "at"),
    empties=(
        *("before = '[]'", "after = ''", f"reason = '{FORGOTTEN}'", "plan = '{}'"),
        "state = iif(state IN ('open', 'planned'), 'outdated', state)",
    ),
)
_decision = reader(Decision)


class Decisions:
    """The store of decisions."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def number(
        self,
        tx: Transaction,
        where: tuple[str, str, str],
        wanted: Sequence[Decision],
        at: datetime | None = None,
    ) -> list[Decision]:
        """Keep and number what a step of a night wants, or what waits already, as it is now.

        `where`: the night, the scope, and the phase. People answer under the number.
        """
        night, scope, phase = where
        found, now = list[Decision](), at or self._clock.now()
        for each in filter(None, map(_safe, wanted)):
            named = replace(each, night=night, n=await self._free(tx, night), phase=phase)
            found.append(await self._kept(tx, replace(named, scope=scope, at=now)))
        return found

    async def propose(self, tx: Transaction, scope: str, wanted: Decision) -> None:
        """Keep what a person has to decide, unless the same waits, or was refused lately."""
        query = (
            "SELECT 1 FROM decisions WHERE scope = ? AND digest = ? AND at > ?"
            " AND state IN ('open', 'refused') AND digest <> ''"
        )
        if await tx.exists(query, (scope, wanted.digest, self._before(WAITS))):
            return
        made = replace(wanted, scope=scope, state="open", at=self._clock.now())
        await self._kept(tx, made)

    async def waiting(
        self, scope: str | None, about: str, source: Transaction | Database | None = None
    ) -> list[Decision]:
        """List the open ones about `core`, `page` or `lines`, in one scope or in all, oldest first."""
        rows = await (source or self._database).rows(
            "SELECT * FROM answered_decisions WHERE state = 'open' AND coalesce(scope = ?, TRUE)"
            " AND coalesce(plan ->> '$.files[0].kind', kind) = ?"
            " AND (night <> '' OR at > ?) ORDER BY seq",
            (scope, about, self._before(WAITS)),
        )
        return [_decision(row) for row in rows]

    async def outdate_text(
        self, tx: Transaction, scope: str, kind: ItemKind, item: str, but: str | None = None
    ) -> None:
        """What would become of a file, `but` for this text, was about one that is another by now."""
        await tx.execute(
            "UPDATE decisions SET state = 'outdated' WHERE state = 'open' AND scope = ?"
            " AND plan ->> '$.files[0].kind' = ? AND plan ->> '$.files[0].item' = ?"
            " AND after IS NOT ?",
            (scope, kind, item, but),
        )

    async def outdate_citing(self, tx: Transaction, scope: str, source: str) -> None:
        """Pages that would name a source that came to nothing wait no more."""
        await tx.execute(
            "UPDATE decisions SET state = 'outdated' WHERE state = 'open' AND scope = ?"
            " AND plan ->> '$.files[0].kind' = 'page' AND instr(after, ?)",
            (scope, source),
        )

    async def listed(
        self,
        source: Transaction | Database,
        night: str | None = None,
        scope: str | None = None,
        states: Collection[DecisionState] = (),
    ) -> list[Decision]:
        """The numbered ones of a night or of all, of a scope or of all, in these states or in any."""
        rows = await source.rows(
            "SELECT * FROM answered_decisions WHERE night <> ''"
            " AND (:night IS NULL OR night = :night) AND (:scope IS NULL OR scope = :scope)"
            " AND (:states = '[]' OR state IN (SELECT value FROM json_each(:states)))"
            " ORDER BY (SELECT seq FROM nights WHERE id = night), n",
            {"night": night, "scope": scope, "states": json.dumps([*states])},
        )
        return [_decision(row) for row in rows]

    async def answered(self, scope: str) -> Answers:
        """What people were asked, or said to what nights did, as long as it is kept (M-079)."""
        states: tuple[DecisionState, ...] = ("open", "refused", "undone")
        found = await self.listed(self._database, scope=scope, states=states)
        members = [
            each["id"]
            for item in found
            for each in item.plan.get("members", ())
            if item.state != "open"
        ]
        wishes = (_wish(item.kind, item.plan) for item in found)
        return Answers(frozenset(wishes), frozenset(members))

    async def current(self, source: Transaction | Database, known: Decision) -> Decision | None:
        """One as it is by now; None: it was answered or forgotten since it was read."""
        rows = await source.rows(
            "SELECT * FROM answered_decisions WHERE seq = ? AND state = ? AND plan = ?",
            (known.seq, known.state, json.dumps(known.plan)),
        )
        return _decision(rows[0]) if rows else None

    async def is_done(self, item: Decision) -> bool:
        """Tell if it was done meanwhile, as after a kill."""
        query = "SELECT 1 FROM decisions WHERE seq = ? AND state = 'done'"
        return await self._database.exists(query, (item.seq,))

    async def turn(self, tx: Transaction, item: Decision) -> None:
        """Keep a question as it was answered: see `turned`."""
        await tx.execute(
            "UPDATE decisions SET plan = :plan, before = :before, after = :after"
            " WHERE seq = :seq AND state = :state",
            stored(columns(item)),
        )

    async def move(
        self, tx: Transaction, item: Decision, state: DecisionState, change_set: str | None = None
    ) -> bool:
        """Put one into another state, if it is still as it is known here."""
        query = (
            "UPDATE decisions SET state = ?, change_set = coalesce(?, change_set)"
            " WHERE seq = ? AND state = ?"
        )
        return await tx.execute(query, (state, change_set, item.seq, item.state)) == 1

    async def set_of(self, source: Transaction | Database, night: str, scope: str) -> str | None:
        """The change set of a scope in a night, once there is one."""
        found = await source.rows(
            "SELECT s.id FROM decisions d JOIN change_sets s ON s.id = d.change_set"
            " WHERE d.night = ? AND d.scope = ? AND s.cause = 'night' ORDER BY d.n LIMIT 1",
            (night, scope),
        )
        return str(found[0]["id"]) if found else None

    async def lost(self, tx: Transaction, scope: str) -> int:
        """The number of facts of a scope that went by nights of the last seven days."""
        (count,) = await tx.scalars(
            "SELECT coalesce(sum(loses), 0) FROM answered_decisions"
            " WHERE scope = ? AND state = 'done' AND at > ?",
            (scope, self._before(WEEK)),
        )
        return int(count)

    async def outdate(self, tx: Transaction) -> int:
        """Close what nobody answered in time; how many were asked about (M-079).

        It waits from the end of its night on: nobody is asked before.
        """
        return await tx.execute(
            "UPDATE decisions SET state = 'outdated' WHERE state = 'open'"
            " AND (SELECT ended_at FROM nights WHERE id = night) <= ?",
            (self._before(WAITS),),
        )

    async def expire(self, tx: Transaction) -> None:
        """Remove those of which nothing can be undone any more, and what no night has asked in time.

        What a person said yes to later can be undone for as long after that.
        """
        await tx.execute(
            "DELETE FROM decisions WHERE state = 'open' AND night IS NULL AND at <= ?",
            (self._before(WAITS),),
        )
        await tx.execute(
            "DELETE FROM decisions WHERE at <= ? AND state NOT IN ('open', 'planned')"
            " AND NOT EXISTS (SELECT 1 FROM change_sets WHERE id = change_set)",
            (self._before(KEPT),),
        )

    async def _free(self, tx: Transaction, night: str) -> int:
        query = "SELECT coalesce(max(n), 0) + 1 FROM decisions WHERE night = ?"
        (first,) = await tx.scalars(query, (night,))
        return int(first)

    async def _kept(self, tx: Transaction, made: Decision) -> Decision:
        if made.seq:
            await tx.execute(
                "UPDATE decisions SET night = :night, n = :n, phase = :phase, before = :before,"
                " after = :after, plan = :plan, at = :at WHERE seq = :seq AND state = 'open'",
                stored(columns(made)),
            )
            return made
        values = columns(made, "seq", "names") | ({} if made.night else {"night": None, "n": None})
        statement, given = insert("decisions", values, "RETURNING seq")
        (seq,) = await tx.scalars(statement, given)
        query = "UPDATE changes SET decision = ? WHERE change_set_id = ? AND decision IS NULL"
        await tx.execute(query, (seq, made.change_set))
        return replace(made, seq=seq)

    def _before(self, age: timedelta) -> str:
        return stamp(self._clock.now() - age)


def turned(item: Decision, *, neither: bool) -> Decision:
    """Turn a question which of two is true to the older one, or to neither of them (M-087)."""
    [older], newer = item.plan["members"], item.plan["winner"]
    members = [older, newer] if neither else [newer]
    return replace(
        item,
        plan=item.plan | {"members": members, "winner": None if neither else older},
        before=tuple(each["text"] for each in members),
        after="" if neither else older["text"],
    )


def _safe(wanted: Decision) -> Decision | None:
    """The same without a secret that was not there before; None: a fact would hold it (M-083)."""
    plan, files = wanted.plan, wanted.plan.get("files", ())
    theirs = [*wanted.before, *plan.get("old", {}).values(), *(each["was"] or "" for each in files)]
    if wanted.kind in (MERGED, LIST):
        facts = {*plan.get("lines", [wanted.after])} - {*theirs}
        return None if any(map(secret_kind, facts)) else wanted
    hide = partial(without_secrets, theirs="\n".join(theirs))
    plan = plan | {name: hide(plan[name]) for name in ("content", "ends") if plan.get(name)}
    if files:
        plan["files"] = [each | {"text": each["text"] and hide(each["text"])} for each in files]
    return replace(wanted, after=hide(wanted.after), reason=hide(wanted.reason), plan=plan)
