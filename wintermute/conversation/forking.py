"""An edited message is asked again where it was first asked; what was done stays done (L-054)."""

import json
from collections.abc import Iterable

from wintermute.conversation import words
from wintermute.conversation.sub_sessions import SubSessions
from wintermute.db import Transaction
from wintermute.loom.casts import Casts
from wintermute.loom.conversations import Conversations
from wintermute.loom.records import Cast
from wintermute.mailbox.inbox import Inbox, Waiting
from wintermute.text import shortened, untagged

LOOKING = {"read_file", "recall", "search_memory", "search_web", "fetch_url", "done"}
"""Gates that change nothing."""
MOST_CHARACTERS = 300  # of one call that is named


class Forking:
    """Finds the branch in which a message is answered."""

    def __init__(
        self, inbox: Inbox, conversations: Conversations, casts: Casts, sub_sessions: SubSessions
    ) -> None:
        self._inbox = inbox
        self._conversations = conversations
        self._casts = casts
        self._sub_sessions = sub_sessions

    async def at(self, tx: Transaction, row: Waiting, branch: str) -> tuple[str, str]:
        """The branch for a row, and what its new text must be told to have been done before.

        `branch` is the current one. For an edited message it is left for a new one, which has in
        view what was said before the message, nothing of its first answer.
        """
        if row.edits is None:
            return branch, ""
        events = await self._inbox.versions(row.edits)
        abandoned = await self._casts.since(tx, branch, events)
        begun = any((c.branch_id, c.event_id) == (branch, row.event_id) for c in abandoned)
        if begun:  # the model was away
            return branch, _done([cast for cast in abandoned if cast.branch_id != branch])
        if not abandoned:  # nobody has looked at the old text here
            return branch, ""
        parent = await self._casts.turn_before(tx, branch, abandoned[0])
        parent_id, place = parent or (None, 0)
        await self._sub_sessions.end(tx, row.conversation_id, after=place)
        fork = await self._conversations.branch(
            tx, row.conversation_id, "edit", row.received_at, parent_id
        )
        return fork, _done(abandoned)


def _done(casts: Iterable[Cast]) -> str:
    effects = "; ".join(_effects(casts))
    return words.EDITED.format(effects=effects) if effects else ""


def _effects(casts: Iterable[Cast]) -> Iterable[str]:
    for cast in casts:
        for turn in cast.turns:
            for seen in turn.observations:
                if seen.gate not in LOOKING and not (seen.completed and seen.is_error):
                    args = json.dumps(seen.args, ensure_ascii=False)
                    yield untagged(shortened(f"{seen.gate} {args}", MOST_CHARACTERS))
