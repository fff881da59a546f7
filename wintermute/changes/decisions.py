"""Decisions: wanted changes with their exact arguments, from plan or question to result.

    planned ─┬─▶ done ──▶ undone: all its changes were undone
             ╰─▶ open ─┬▶ done (a person said yes)
                       ├▶ refused ─▶ open (the person changes their mind)
                       ╰▶ outdated: its subject changed, or nobody answered

A night numbers its decisions over all scopes, `NIGHT#N`; others have no number until a night asks
about them. People see those of one scope.
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
from wintermute.db.text_search import OURS_SINCE, SCOPES, SearchableText
from wintermute.db.values import columns, insert, reader, stored
from wintermute.messages import Json
from wintermute.secret_shapes import secret_kind, without_secrets

DecisionState = Literal["planned", "done", "open", "refused", "outdated", "undone"]
OPEN: tuple[DecisionState, ...] = ("open",)
PLANNED: tuple[DecisionState, ...] = ("planned",)
WAITS = timedelta(days=14)
"""Time for which a question waits for an answer (M-079)."""
WEEK = timedelta(days=7)
MERGED, LIST, PAGE_LINES = "merged", "list", "page lines"
LINES = "lines"
"""Kind of a question about memories whose lines were removed all at once (M-090)."""
NOT_YET = datetime.min.replace(tzinfo=UTC)
FORGOTTEN = "forgotten"
"""Reason of a decision whose words were forgotten."""

DECISIONS = SearchableText(
    "decisions",
    ("before", "after", "reason", "plan"),
    of=f"scope IN {SCOPES}",
    ours=OURS_SINCE.replace("created_at", "at"),
    empties=(
        *("before = '[]'", "after = ''", f"reason = '{FORGOTTEN}'", "plan = '{}'"),
        "state = iif(state IN ('open', 'planned'), 'outdated', state)",
    ),
)


@dataclass(frozen=True, slots=True)
class Decision:
    """A change that is wanted, or was made. `names`: the changed items, each as kind and id.

    `plan`: the arguments of its kind, or the `files` to change; `outside`: its words may come from a page, a file, a
    stranger. `loses`: number of facts that the scope loses. `state`: an `open` one waits for a person's yes.
    `digest`: equal questions have the same one. `night`, `n`: the number under which a night asks; "" and 0 before
    that.
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
        """Return its name for people; outside of nights it has none, and programs use its `seq`."""
        return f"{self.night}#{self.n}" if self.night else str(self.seq)

    @property
    def is_untrusted(self) -> bool:
        """True if its words may come from outside: no model may see them (L-037)."""
        return bool(self.plan.get("outside"))

    @property
    def file(self) -> Json | None:
        """Return the first file that it changes: its kind, its item, and the new text."""
        return next(iter(self.plan.get("files", ())), None)

    def file_changes(self) -> list[Change]:
        """Return the changes of files in its plan; removals come last, when the rest is in place."""
        found = [
            Change(f["kind"], f["item"], state_of(f["was"]), state_of(f["text"]), self.evidence)
            for f in self.plan.get("files", ())
        ]
        return sorted(found, key=lambda each: each.after is None)


@dataclass(frozen=True, slots=True)
class Answers:
    """The questions of a scope, open or answered. `questions`: each as kind and plan.

    `kept`: facts that somebody wanted to keep as they are, or restored.
    """

    questions: frozenset[str]
    kept: frozenset[str]

    def knows(self, wanted: Decision) -> bool:
        """Check whether the same question is open, or was answered."""
        return _wish(wanted.kind, wanted.plan) in self.questions

    def disputes(self, wanted: Decision) -> bool:
        """Check whether it is about a fact that somebody wanted to keep: a night must ask then."""
        return any(each["id"] in self.kept for each in wanted.plan.get("members", ()))


def _wish(kind: str, plan: Json) -> str:
    return json.dumps([kind, plan], sort_keys=True)


def digest_of(*shown: str) -> str:
    """Return a digest of the shown texts, which does not depend on their order."""
    return blake2b("\0".join(sorted(shown)).encode(), digest_size=16).hexdigest()


def text_proposal(kind: ItemKind, item: str, text: str | None, reason: str) -> Decision:
    """Return a proposal to change or remove a file, which a person has to accept."""
    return Decision(
        f"{kind} removed" if text is None else f"{kind} changed",
        (item if kind == "page" else "core memory",),
        text or "",
        reason,
        {"files": [{"kind": kind, "item": item, "was": None, "text": text}]},
        state="open",
        digest=digest_of(kind, item, text or ""),
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
        """Store and number the decisions of a night's step, and update those that were waiting.

        `where`: the night, the scope, and the phase. People answer with the number.
        """
        night, scope, phase = where
        found, now = list[Decision](), at or self._clock.now()
        for each in filter(None, map(_without_secrets, wanted)):
            named = replace(each, night=night, n=await self._next_number(tx, night), phase=phase)
            found.append(await self._store(tx, replace(named, scope=scope, at=now)))
        return found

    async def propose(self, tx: Transaction, scope: str, wanted: Decision) -> None:
        """Store a question for a person, unless the same one is open, or was refused lately."""
        query = (
            "SELECT 1 FROM decisions WHERE scope = ? AND digest = ? AND at > ?"
            " AND state IN ('open', 'refused') AND digest <> ''"
        )
        if await tx.exists(query, (scope, wanted.digest, self._before(WAITS))):
            return
        made = replace(wanted, scope=scope, state="open", at=self._clock.now())
        await self._store(tx, made)

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
        """Close the open proposals for a file, `but` the one with this text: the file has changed."""
        await tx.execute(
            "UPDATE decisions SET state = 'outdated' WHERE state = 'open' AND scope = ?"
            " AND plan ->> '$.files[0].kind' = ? AND plan ->> '$.files[0].item' = ?"
            " AND after IS NOT ?",
            (scope, kind, item, but),
        )

    async def outdate_citing(self, tx: Transaction, scope: str, source: str) -> None:
        """Close the open proposals of pages that cite a source without result."""
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
        """List numbered decisions of a night or of all, of a scope or of all, in these states or in any."""
        rows = await source.rows(
            "SELECT * FROM answered_decisions WHERE night <> ''"
            " AND (:night IS NULL OR night = :night) AND (:scope IS NULL OR scope = :scope)"
            " AND (:states = '[]' OR state IN (SELECT value FROM json_each(:states)))"
            " ORDER BY (SELECT seq FROM nights WHERE id = night), n",
            {"night": night, "scope": scope, "states": json.dumps([*states])},
        )
        return [_decision(row) for row in rows]

    async def answered(self, scope: str) -> Answers:
        """Return the questions of a scope and the answers to nights, as long as they are kept (M-079)."""
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
        """Return a decision as stored now; None: it was answered or forgotten since it was read."""
        rows = await source.rows(
            "SELECT * FROM answered_decisions WHERE seq = ? AND state = ? AND plan = ?",
            (known.seq, known.state, json.dumps(known.plan)),
        )
        return _decision(rows[0]) if rows else None

    async def is_done(self, item: Decision) -> bool:
        """Check whether it was applied meanwhile, as before a crash."""
        query = "SELECT 1 FROM decisions WHERE seq = ? AND state = 'done'"
        return await self._database.exists(query, (item.seq,))

    async def turn(self, tx: Transaction, item: Decision) -> None:
        """Store a question as it was answered: see `answered_otherwise`."""
        await tx.execute(
            "UPDATE decisions SET plan = :plan, before = :before, after = :after"
            " WHERE seq = :seq AND state = :state",
            stored(columns(item)),
        )

    async def move(
        self, tx: Transaction, item: Decision, state: DecisionState, change_set: str | None = None
    ) -> bool:
        """Change the state of a decision, unless its state changed meanwhile."""
        query = (
            "UPDATE decisions SET state = ?, change_set = coalesce(?, change_set)"
            " WHERE seq = ? AND state = ?"
        )
        return await tx.execute(query, (state, change_set, item.seq, item.state)) == 1

    async def set_of(self, source: Transaction | Database, night: str, scope: str) -> str | None:
        """Return the change set of a scope in a night, if there is one already."""
        found = await source.rows(
            "SELECT s.id FROM decisions d JOIN change_sets s ON s.id = d.change_set"
            " WHERE d.night = ? AND d.scope = ? AND s.cause = 'night' ORDER BY d.n LIMIT 1",
            (night, scope),
        )
        return str(found[0]["id"]) if found else None

    async def lost(self, tx: Transaction, scope: str) -> int:
        """Count the facts that a scope lost by nights of the last seven days."""
        (count,) = await tx.scalars(
            "SELECT coalesce(sum(loses), 0) FROM answered_decisions"
            " WHERE scope = ? AND state = 'done' AND at > ?",
            (scope, self._before(WEEK)),
        )
        return int(count)

    async def outdate(self, tx: Transaction) -> int:
        """Close questions that nobody answered in time; return their number (M-079).

        The time starts at the end of the night, as nobody is asked before.
        """
        return await tx.execute(
            "UPDATE decisions SET state = 'outdated' WHERE state = 'open'"
            " AND (SELECT ended_at FROM nights WHERE id = night) <= ?",
            (self._before(WAITS),),
        )

    async def expire(self, tx: Transaction) -> None:
        """Remove decisions that can no longer be undone, and proposals that no night has asked in time.

        After a late yes the time for an undo starts with the yes.
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

    async def _next_number(self, tx: Transaction, night: str) -> int:
        query = "SELECT coalesce(max(n), 0) + 1 FROM decisions WHERE night = ?"
        (first,) = await tx.scalars(query, (night,))
        return int(first)

    async def _store(self, tx: Transaction, made: Decision) -> Decision:
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


def answered_otherwise(item: Decision, *, neither: bool) -> Decision:
    """Turn a question about two facts, so that the older one is true, or neither (M-087)."""
    [older], newer = item.plan["members"], item.plan["winner"]
    members = [older, newer] if neither else [newer]
    return replace(
        item,
        plan=item.plan | {"members": members, "winner": None if neither else older},
        before=tuple(each["text"] for each in members),
        after="" if neither else older["text"],
    )


def _without_secrets(wanted: Decision) -> Decision | None:
    """Return the decision without new secrets; None: a fact would hold one (M-083)."""
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
