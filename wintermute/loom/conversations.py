"""The store of conversations and their branches. The newest branch of a conversation is the current one.

Beside them: edits that are recorded but not answered (of older messages, and into or of commands,
L-054), and rewards, the reactions to an answer, for the turn that gave it (X-026). A cast can be
copied into a database of its own, in the state of its beginning.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from wintermute.clock import Clock, moment, stamp
from wintermute.config.secrets import UNHIDDEN, Redaction
from wintermute.db import Database, Row, Transaction
from wintermute.db.text_search import OF_CONVERSATIONS, OF_EVENTS, SearchableText, TextMatches
from wintermute.db.values import insert, reader
from wintermute.ids import NewId
from wintermute.loom.casts import PATH
from wintermute.loom.records import Fold
from wintermute.messages import PERSON
from wintermute.secret_shapes import without_secrets

ConversationKind = Literal["room", "terminal", "job"]
IN_BETWEEN = ""
"""The temporary room of a conversation while two swap their rooms."""
OVER = "over "
"""Prefix of the root of a thread whose room has moved; event ids begin with `$`."""
BranchReason = Literal["start", "new", "edit", "fork", "scope"]
EDITS = SearchableText(
    *("edits", ("text",)),
    fixed=True,
    of=OF_CONVERSATIONS,
    derived=f"event_id {OF_EVENTS} OR edited {OF_EVENTS}",
)
_fold = reader(Fold)
Reward = Literal[-1, 1]
RUNNING_COLUMNS: dict[str, Any] = {
    "state": "running",
    "reason": None,
    "result": None,
    "ended_at": None,
    "fold_refused": 0,
}


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation: its room and its scope."""

    id: str
    room_id: str
    scope: str


_conversation = reader(Conversation)


class Conversations:
    """The store of conversations and branches."""

    def __init__(self, database: Database, clock: Clock, new_id: NewId) -> None:
        self._database = database
        self._clock = clock
        self._new_id = new_id

    async def in_room(
        self, tx: Transaction, room_id: str, scope: str, kind: ConversationKind = "room"
    ) -> str:
        """Return the id of the room's conversation; create it if it is new.

        When the scope changed (a third person came, or left) a new branch begins, so that nothing
        said before is carried over (DESIGN §6). A private conversation continues when the person is
        alone again (F-001).
        """
        rows = await tx.rows(
            "SELECT id, thread_id, scope FROM conversations WHERE room_id = ?"
            " AND (thread_id = '' OR scope <> ?)",
            (room_id, scope),
        )
        for row in rows:  # threads change with their room
            if row["scope"] != scope:
                await self._rescope(tx, row["id"], scope)
        known_id = next((row["id"] for row in rows if row["thread_id"] == ""), None)
        return known_id or (await self.add_conversation(tx, kind, scope, room_id=room_id))[0]

    async def _rescope(self, tx: Transaction, conversation_id: str, scope: str) -> None:
        query = "UPDATE conversations SET scope = ? WHERE id = ?"
        await tx.execute(query, (scope, conversation_id))
        alone = scope.startswith(PERSON)
        left_at = await self._last_turn(tx, conversation_id, scope) if alone else None
        await self.branch(tx, conversation_id, "scope", forked_from=left_at)

    async def _last_turn(self, tx: Transaction, conversation_id: str, scope: str) -> str | None:
        """Return the last turn in view of the newest branch of a scope, if it has one."""
        row = await tx.row(
            "SELECT coalesce((SELECT t.id FROM turns t JOIN casts c ON c.id = t.cast_id"
            "  WHERE c.branch_id = b.id ORDER BY t.seq DESC LIMIT 1), b.forked_from) AS turn"
            " FROM branches b WHERE b.conversation_id = ? AND b.scope = ? ORDER BY b.seq DESC LIMIT 1",
            (conversation_id, scope),
        )
        return row["turn"] if row else None

    async def rescope(self, tx: Transaction, room_id: str, scope: str) -> list[str]:
        """Set a room's scope after its members changed; return the conversations with a new scope, threads too."""
        conversations = await self.conversations_in(tx, room_id)
        changed = [each.id for each in conversations if each.scope != scope]
        for conversation_id in changed:
            await self._rescope(tx, conversation_id, scope)
        return changed

    async def was_private(self, tx: Transaction, conversation_id: str) -> str | None:
        """Return the scope of a private chat, if the current branch began when it became a group."""
        row = await tx.row(
            "SELECT o.scope FROM branches b JOIN branches o ON o.seq = (SELECT max(seq) FROM branches"
            "  WHERE conversation_id = :id AND seq < b.seq)"
            " WHERE b.conversation_id = :id AND b.reason = 'scope'"
            " AND b.seq = (SELECT max(seq) FROM branches WHERE conversation_id = :id)"
            " AND b.scope NOT LIKE 'person:%' AND o.scope LIKE 'person:%'",
            {"id": conversation_id},
        )
        return row["scope"] if row else None

    async def move(self, tx: Transaction, old: str, new: str) -> list[str]:
        """Move the conversations of a room to its successor room (F-013).

        A conversation that the new room had before moves to the old room, so its pending messages
        follow the room's successor. Threads of the old room move along and are closed, because
        their roots stay behind; returns their ids.
        """
        if await self.of_room(tx, old) is None:
            return []
        over = await tx.scalars(
            "UPDATE conversations SET room_id = ?, thread_id ="
            f" iif(thread_id LIKE '{OVER}%', '', '{OVER}') || thread_id"
            " WHERE room_id = ? AND thread_id <> '' RETURNING id",
            (new, old),
        )
        query = "UPDATE conversations SET room_id = ? WHERE room_id = ? AND thread_id = ''"
        # A room has only one conversation of its own.
        for step in ((IN_BETWEEN, new), (new, old), (old, IN_BETWEEN)):
            await tx.execute(query, step)
        return over

    async def rename(self, tx: Transaction, was: str, scope: str) -> None:
        """Rename a scope; the messages in it stay in view."""
        query = "SELECT id FROM conversations WHERE scope = ? AND kind = 'room'"
        for held in await tx.scalars(query, (was,)):
            left_at = await self._last_turn(tx, held, was)
            await tx.execute("UPDATE conversations SET scope = ? WHERE id = ?", (scope, held))
            await self.branch(tx, held, "scope", forked_from=left_at)

    async def scopes_of(
        self, source: Transaction | Database, events: Collection[str], scopes: Collection[str] = ()
    ) -> list[str]:
        """Return the scopes in which these events were, by their casts, and these scopes.

        Earlier names of a room's scope are included.
        """
        rows = await source.rows(
            "WITH named (scope) AS (SELECT value FROM json_each(:scopes) UNION"
            " SELECT coalesce(b.scope, (SELECT n.scope FROM branches n"
            "   WHERE n.conversation_id = i.conversation_id AND n.created_at <= i.received_at"
            "   ORDER BY n.seq DESC LIMIT 1), v.scope)"
            "  FROM inbox i JOIN conversations v ON v.id = i.conversation_id"
            "  LEFT JOIN casts k ON k.event_id = i.event_id LEFT JOIN branches b ON b.id = k.branch_id"
            "  WHERE i.event_id IN (SELECT value FROM json_each(:events)))"
            " SELECT scope FROM named UNION SELECT o.scope FROM branches o WHERE o.scope LIKE 'room:%'"
            " AND o.conversation_id IN (SELECT m.conversation_id FROM branches m"
            "  WHERE m.scope IN (SELECT scope FROM named) AND m.scope LIKE 'room:%')",
            {"events": json.dumps(sorted(events)), "scopes": json.dumps(sorted(scopes))},
        )
        return [row["scope"] for row in rows]

    async def add_conversation(
        self,
        tx: Transaction,
        kind: str,
        scope: str,
        *,
        forked_from: str | None = None,
        **more: object,
    ) -> tuple[str, str]:
        """Create a conversation; return its id and that of its first branch."""
        conversation_id = self._new_id("conv")
        values = {"id": conversation_id, "kind": kind, "scope": scope} | more
        await tx.execute(*insert("conversations", values | {"created_at": self._clock.now()}))
        reason: BranchReason = "fork" if forked_from else "start"
        return conversation_id, await self.branch(
            tx, conversation_id, reason, forked_from=forked_from
        )

    async def branch(
        self,
        tx: Transaction,
        conversation_id: str,
        reason: BranchReason,
        asked_at: datetime | None = None,
        forked_from: str | None = None,
    ) -> str:
        """Begin a new branch, which is the current one from now on.

        `asked_at`: the time of a person's request, which may be a while ago. `forked_from`: the
        last turn that stays in view (L-052).
        """
        branch_id = self._new_id("branch")
        await tx.execute(
            "INSERT INTO branches (id, conversation_id, reason, created_at, forked_from, scope)"
            " SELECT ?, id, ?, ?, ?, scope FROM conversations WHERE id = ?",
            (branch_id, reason, stamp(asked_at or self._clock.now()), forked_from, conversation_id),
        )
        return branch_id

    async def open_below(
        self, tx: Transaction, cast_id: str, turn_id: str, scope: str, depth: int, *, outlives: bool
    ) -> tuple[str, str]:
        """Create a conversation for a turn's sub-session; return its id and that of its branch.

        `outlives`: it goes on when the cast of that turn ends (L-062).
        """
        links: dict[str, Any] = {"parent_cast": cast_id, "parent_turn": turn_id}
        return await self.add_conversation(
            tx, "sub_session", scope, depth=depth, outlives=outlives, **links
        )

    async def current_branch(self, tx: Transaction, conversation_id: str) -> str:
        """Return the branch of the next cast."""
        return str((await self._current(tx, conversation_id))["id"])

    async def open_run(self, tx: Transaction, scope: str, depth: int) -> str:
        """Create a conversation for work without a person; return its branch."""
        return (await self.add_conversation(tx, "job", scope, depth=depth))[1]

    async def target_conversations(
        self, tx: Transaction, scope: str, made_in: str | None = None
    ) -> list[Conversation]:
        """Return the conversations for messages of a scope: that of origin first, then the last active.

        A thread is used only if the message originates in it; else the room itself.
        """
        rows = await tx.rows(
            "SELECT id, room_id, scope FROM conversations o WHERE scope = :scope"
            " AND kind IN ('room', 'terminal') AND (thread_id = '' OR id = :made_in)"
            " ORDER BY id IS :made_in DESC, (SELECT max(c.seq) FROM conversations v"
            "  JOIN branches b ON b.conversation_id = v.id JOIN casts c ON c.branch_id = b.id"
            "  WHERE v.room_id = o.room_id) DESC, rowid DESC",
            {"scope": scope, "made_in": made_in},
        )
        return [_conversation(row) for row in rows]

    async def scopes(self) -> list[str]:
        """Return the scopes of all conversations with people."""
        return await self._database.scalars(
            "SELECT DISTINCT scope FROM conversations WHERE kind IN ('room', 'terminal')"
            " AND scope <> '' ORDER BY scope"
        )

    async def of_room(self, tx: Transaction, room_id: str) -> Conversation | None:
        """Return the conversation of a room itself, in any scope."""
        return next(iter(await self.conversations_in(tx, room_id)), None)

    async def conversations_in(self, tx: Transaction, room_id: str) -> list[Conversation]:
        """List the conversations of a room: its own first, then its threads."""
        rows = await tx.rows(
            "SELECT id, room_id, scope FROM conversations WHERE room_id = ? ORDER BY thread_id",
            (room_id,),
        )
        return [_conversation(row) for row in rows]

    async def scope_of_turn(self, turn_id: str) -> str:
        """Return the scope of a turn's branch."""
        row = await self._database.row(
            "SELECT c.branch_id FROM turns t JOIN casts c ON c.id = t.cast_id WHERE t.id = ?",
            (turn_id,),
        )
        if row is None:
            raise LookupError(turn_id)
        return await self.scope_of(row["branch_id"])

    async def is_over(self, tx: Transaction, turn_id: str) -> bool:
        """Return True if the people of a turn's scope began anew after it, or an edit has cut it out."""
        return await tx.exists(
            "SELECT 1 FROM turns t JOIN casts c ON c.id = t.cast_id JOIN branches b ON b.id = c.branch_id"
            " JOIN branches n ON n.conversation_id = b.conversation_id AND n.seq > b.seq"
            "  AND n.scope = b.scope"
            " LEFT JOIN turns f ON f.id = n.forked_from"
            " WHERE t.id = ? AND (n.reason IN ('new', 'fork') OR n.reason = 'edit'"
            "  AND coalesce(f.seq, 0) < t.seq) LIMIT 1",
            (turn_id,),
        )

    async def in_view(self, tx: Transaction, conversation_id: str, turn_id: str) -> bool:
        """Return True if a turn belongs to the path of the current branch."""
        return await tx.exists(
            f"{PATH} SELECT 1 FROM turns t JOIN casts c ON c.id = t.cast_id"
            " JOIN path p ON p.branch_id = c.branch_id AND t.seq <= p.until WHERE t.id = :turn",
            {"branch": await self.current_branch(tx, conversation_id), "turn": turn_id},
        )

    async def first(self, tx: Transaction) -> datetime | None:
        """Return the time of the first conversation; None if there is none."""
        (at,) = await tx.scalars("SELECT min(created_at) FROM conversations")
        return moment(at) if at else None

    async def began(self, tx: Transaction, conversation_id: str) -> datetime:
        """Return the start of the current branch: nothing from before is in view."""
        return moment((await self._current(tx, conversation_id))["created_at"])

    async def scoped_since(self, tx: Transaction, conversation_id: str) -> datetime | None:
        """Return the time since which a conversation has its scope; None if it never had another."""
        (since,) = await tx.scalars(
            "SELECT min(b.created_at) FROM conversations c JOIN branches b"  # its room's branches count, too
            "  ON b.conversation_id IN (SELECT :id UNION SELECT m.id FROM conversations m"
            "   WHERE m.room_id = c.room_id AND m.thread_id = '') WHERE c.id = :id AND b.seq >"
            "  (SELECT max(o.seq) FROM branches o WHERE o.conversation_id IN (SELECT :id UNION"
            "   SELECT m.id FROM conversations m WHERE m.room_id = c.room_id AND m.thread_id = '')"
            "   AND o.scope <> c.scope)",
            {"id": conversation_id},
        )
        return moment(since) if since else None

    async def scope_of(self, branch_id: str) -> str:
        """Return the scope of a branch; that of its conversation may have changed since."""
        scopes = await self._database.scalars(
            "SELECT scope FROM branches WHERE id = ?", (branch_id,)
        )
        if not scopes:
            raise LookupError(branch_id)
        return str(scopes[0])

    async def _current(self, tx: Transaction, conversation_id: str) -> Row:
        row = await tx.row(
            "SELECT id, created_at FROM branches WHERE conversation_id = ?"
            " ORDER BY seq DESC LIMIT 1",
            (conversation_id,),
        )
        if row is None:
            raise LookupError(conversation_id)
        return row

    async def backend(self, conversation_id: str) -> str | None:
        """Return the model chosen for a conversation; None for those of its role (X-048)."""
        row = await self._database.row(
            "SELECT backend FROM conversations WHERE id = ?", (conversation_id,)
        )
        return row["backend"] if row else None

    async def choose(self, tx: Transaction, conversation_id: str, backend: str | None) -> None:
        """Choose the only model for the next casts of a conversation; None for those of its role."""
        query = "UPDATE conversations SET backend = ? WHERE id = ?"
        await tx.execute(query, (backend, conversation_id))

    async def get(self, conversation_id: str) -> Conversation:
        """Return one conversation by its id."""
        row = await self._database.row(
            "SELECT id, room_id, scope FROM conversations WHERE id = ?", (conversation_id,)
        )
        if row is None:
            raise LookupError(conversation_id)
        return _conversation(row)


class Edits:
    """The store of recorded edits. An edit that is answered is an inbox row of its own."""

    def __init__(self, database: Database, clock: Clock, redact: Redaction = UNHIDDEN) -> None:
        """Take the database. `redact` hides our own secrets, should somebody post one (L-089)."""
        self._database = database
        self._redact = redact
        self._clock = clock

    async def note(
        self,
        tx: Transaction,
        event_id: str,
        edited: str,
        conversation_id: str,
        sender: str,
        text: str,
    ) -> bool:
        """Record an edit of the message `edited`; False if it was recorded before."""
        values = {"event_id": event_id, "edited": edited, "conversation_id": conversation_id}
        values |= {"sender": sender, "text": self._redact(text)}
        values |= {"created_at": stamp(self._clock.now())}
        return await tx.execute(*insert("edits", values, "ON CONFLICT (event_id) DO NOTHING")) == 1

    async def last(self, tx: Transaction, edited: str) -> str:
        """Return the newest wording that an edit gave a message; "" if no edit is recorded."""
        query = "SELECT text FROM edits WHERE edited = ? AND text <> '' ORDER BY seq DESC LIMIT 1"
        return next(iter(await tx.scalars(query, (edited,))), "")

    async def since(self, tx: Transaction, conversation_id: str) -> datetime:
        """Return the time from which messages count as current: older ones are another history.

        A branch begun by an edit does not count: it has the same message, which may be edited
        again.
        """
        (since,) = await tx.scalars(
            "SELECT created_at FROM branches WHERE conversation_id = ? AND reason <> 'edit'"
            " ORDER BY seq DESC LIMIT 1",
            (conversation_id,),
        )
        return moment(since)

    async def wordings(
        self, tx: Transaction, events: Collection[str]
    ) -> dict[str, tuple[str, str]]:
        """Return the message and the text of each of these events that is a recorded edit; "" if blanked."""
        rows = await tx.rows(
            "SELECT event_id, edited, text FROM edits"
            " WHERE event_id IN (SELECT value FROM json_each(?))",
            (json.dumps(sorted(events)),),
        )
        return {row["event_id"]: (row["edited"], row["text"]) for row in rows}

    async def matching(self, traces: TextMatches) -> list[Row]:
        """Return the recorded edits that contain one of the `traces`, in the form of `Inbox.find_containing`."""
        return await self._database.rows(
            "SELECT i.seq, e.event_id, e.edited AS message, e.sender, i.direct, e.text AS body"
            " FROM edits e JOIN inbox i ON i.event_id = e.edited"
            f" WHERE e.seq IN (SELECT seq FROM edits WHERE {EDITS.rows()})",
            traces.asked(EDITS),
        )

    async def retract_events(
        self, tx: Transaction, room_id: str, events: Collection[str]
    ) -> dict[str, str]:
        """Blank these edits, and those of these messages, in a room (F-027); return their texts."""
        parameters = {"room": room_id, "events": json.dumps(sorted(events))}
        matching = (
            "text <> '' AND (event_id IN (SELECT value FROM json_each(:events))"
            " OR edited IN (SELECT value FROM json_each(:events))) AND EXISTS"
            " (SELECT 1 FROM inbox i WHERE i.event_id = edits.edited AND i.room_id = :room)"
        )
        rows = await tx.rows(f"SELECT event_id, text FROM edits WHERE {matching}", parameters)
        await tx.execute(f"UPDATE edits SET text = '' WHERE {matching}", parameters)
        return {row["event_id"]: row["text"] for row in rows}


class Rewards:
    """The store of rewards. They come after their turns, and are never removed (L-048)."""

    def __init__(self, database: Database, clock: Clock, new_id: NewId) -> None:
        self._database = database
        self._clock = clock
        self._new_id = new_id

    async def add(
        self, tx: Transaction, cast_id: str, value: Reward, sender: str, event_id: str
    ) -> bool:
        """Reward the last turn of a cast; False if it has none, or the event was stored before."""
        added = await tx.execute(
            "INSERT INTO rewards (id, turn_id, value, sender, event_id, created_at)"
            " SELECT ?, id, ?, ?, ?, ? FROM turns WHERE cast_id = ? ORDER BY seq DESC LIMIT 1"
            " ON CONFLICT (event_id) DO NOTHING",
            (self._new_id("reward"), value, sender, event_id, stamp(self._clock.now()), cast_id),
        )
        return added == 1


class Folds:
    """The store of folds. The turns themselves stay (L-048)."""

    def __init__(self, database: Database, clock: Clock, new_id: NewId) -> None:
        self._database = database
        self._clock = clock
        self._new_id = new_id

    async def newest(self, branch_id: str) -> Fold | None:
        """Return the fold that covers most of a branch's path; None if there is none."""
        row = await self._database.row(
            f"{PATH} SELECT f.summary, f.turns, f.made_at, t.seq AS last_turn, c.seq AS last_cast"
            " FROM path p JOIN folds f ON f.branch_id = p.branch_id"
            " JOIN turns t ON t.id = f.to_turn JOIN casts c ON c.id = t.cast_id"
            " WHERE t.seq <= p.until AND f.summary <> '' ORDER BY t.seq DESC, f.seq DESC LIMIT 1",
            {"branch": branch_id},
        )
        if row is None:
            return None
        return _fold(row)

    async def add(
        self,
        tx: Transaction,
        branch_id: str,
        to_turn: str,
        summary: str,
        *,
        after: Fold | None,
        tokens_before: int,
        tokens_after: int,
        night: str = "",
    ) -> int:
        """Store a summary of all turns up to `to_turn`; `after` is the fold before it.

        Secrets in it are masked (M-083). Returns the number of turns that it covers.
        """
        (more,) = await tx.scalars(
            f"{PATH} SELECT count(*) FROM path p JOIN casts c ON c.branch_id = p.branch_id"
            " AND c.seq >= :cast JOIN turns t ON t.cast_id = c.id AND t.seq <= p.until"
            " AND t.seq > :after AND t.seq <= (SELECT seq FROM turns WHERE id = :to)",
            {
                "branch": branch_id,
                "cast": after.last_cast if after else 0,
                "after": after.last_turn if after else 0,
                "to": to_turn,
            },
        )
        turns: int = more + (after.turns if after else 0)
        await tx.execute(
            f"{PATH} INSERT INTO folds (id, branch_id, from_turn, to_turn, summary, turns,"
            " tokens_before, tokens_after, night, created_at, made_at) SELECT :id, :branch,"
            " (SELECT t.id FROM path p JOIN casts c ON c.branch_id = p.branch_id"
            "  JOIN turns t ON t.cast_id = c.id ORDER BY t.seq LIMIT 1),"
            " :to, :summary, :turns, :tokens_before, :tokens_after, :night, :now,"
            " (SELECT max(t.seq) FROM path p JOIN casts c ON c.branch_id = p.branch_id"
            "  JOIN turns t ON t.cast_id = c.id AND t.seq <= p.until)",
            {
                "branch": branch_id,
                "id": self._new_id("fold"),
                "to": to_turn,
                "summary": without_secrets(summary),
                "turns": turns,
                "tokens_before": tokens_before,
                "tokens_after": tokens_after,
                "night": night,
                "now": stamp(self._clock.now()),
            },
        )
        return turns

    async def of_night(self, night: str, scope: str) -> list[str]:
        """Return the branches of a scope that a night folded."""
        return await self._database.scalars(
            "SELECT DISTINCT f.branch_id FROM folds f JOIN branches b ON b.id = f.branch_id"
            " JOIN conversations c ON c.id = b.conversation_id WHERE f.night = ? AND f.night <> ''"
            " AND c.scope = ? ORDER BY f.branch_id",
            (night, scope),
        )
