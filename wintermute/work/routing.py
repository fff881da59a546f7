"""Routing: target rooms for messages that nobody asked for at this moment."""

from wintermute.conversation.state import Speaker
from wintermute.db import Transaction
from wintermute.loom.conversations import Conversation
from wintermute.messages import PERSON
from wintermute.stores import Stores
from wintermute.tasks.tasks import EVERYWHERE


class TargetRooms:
    """Target rooms, looked up once per transaction (T-013, T-014)."""

    def __init__(
        self,
        stores: Stores,
        gone: frozenset[str],
        barred: frozenset[str],
        encrypted: frozenset[str],
        speaker: Speaker,
    ) -> None:
        """`gone`: rooms that were left or closed; `barred`: rooms only for what was made there.

        A message that was made in one of the `encrypted` rooms goes to an encrypted room only.
        """
        self._stores = stores
        self._gone = gone
        self._barred = barred
        self._encrypted = encrypted
        self._speaker = speaker
        self._cache: dict[tuple[str, str | None], Conversation | None] = {}

    @classmethod
    async def current(cls, tx: Transaction, stores: Stores, speaker: Speaker) -> "TargetRooms":
        """Read the current rooms in this transaction."""
        barred = (await stores.known.moves(tx)).unencrypted
        encrypted = await stores.known.encrypted()
        return cls(stores, await stores.known.inactive(tx), barred, encrypted, speaker)

    async def target_room(
        self, tx: Transaction, scope: str, made_in: str | None
    ) -> Conversation | None:
        """Return the conversation for a message of a scope; None: there is none now."""
        key = (scope, made_in)
        if key not in self._cache:
            self._cache[key] = await self._find(tx, scope, made_in)
        return self._cache[key]

    async def _find(self, tx: Transaction, scope: str, made_in: str | None) -> Conversation | None:
        if scope == EVERYWHERE and made_in is not None:
            candidates = [await self._stores.conversations.get(made_in)]
        else:
            scope = self._stores.owner.scope if scope == EVERYWHERE else scope
            candidates = await self._stores.conversations.target_conversations(tx, scope, made_in)
        secret = await self._is_encrypted(made_in)
        target = next(
            (each for each in candidates if self._is_allowed(each, made_in, secret)), None
        )
        return target or await self._open(tx, scope, secret)

    async def _is_encrypted(self, made_in: str | None) -> bool:
        if made_in is None:
            return False
        return (await self._stores.conversations.get(made_in)).room_id in self._encrypted

    def _is_allowed(self, each: Conversation, made_in: str | None, secret: bool) -> bool:
        if each.room_id in self._gone or (each.room_id in self._barred and each.id != made_in):
            return False
        if secret and each.room_id not in self._encrypted:
            return False
        return self._speaker.fits(each)

    async def _open(self, tx: Transaction, scope: str, secret: bool) -> Conversation | None:
        """Open a conversation in the person's room, if they have not spoken there yet."""
        room_id = self._speaker.room_for(scope, encrypted=secret)
        if room_id is None or room_id in self._gone:
            return None
        held = await self._stores.conversations.of_room(tx, room_id)
        if held and not scope.startswith(PERSON):
            return held  # a group of two by now: its conversation goes on
        conversation_id = await self._stores.conversations.in_room(tx, room_id, scope)
        return Conversation(conversation_id, room_id, scope)
