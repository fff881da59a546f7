"""Small signs of life for a conversation: read, writing, done. They may fail without harm.

What was said in a room before, as the homeserver has it: people reply to it (F-026).
"""

import asyncio
import logging

from wintermute import text
from wintermute.clock import Clock
from wintermute.config.schema import Matrix
from wintermute.errors import HomeserverUnavailable, LoginRefused, SendRefused
from wintermute.llm.backend import Wait
from wintermute.loom.conversations import Conversation
from wintermute.mailbox.inbox import Waiting
from wintermute.mailbox.outbox import is_matrix
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.drafts import Drafts
from wintermute.matrix.inbox import Policy, may_read, readable, string, time_sent
from wintermute.matrix.outbox import Sender
from wintermute.matrix.people import NOT_THEIRS
from wintermute.matrix.sieve import well_formed
from wintermute.matrix.trust import worth
from wintermute.messages import Json, Quote, mapping
from wintermute.stores import Stores

log = logging.getLogger(__name__)

QUOTE_SECONDS = 5.0  # an answer may wait so long for what its question replies to
REFRESH_SECONDS = 20.0  # a typing sign fades after 30
LINGER_SECONDS = 0.5  # the answer goes out first, and the next message may follow at once


class MatrixSpeaker:
    """Shows in its room what a conversation wants shown; nobody waits for it."""

    def __init__(
        self,
        client: MatrixClient,
        stores: Stores,
        sender: Sender,
        policy: Policy,
        settings: Matrix,
        clock: Clock,
        drafts: Drafts,
    ) -> None:
        self._client = client
        self._stores = stores
        self._sender = sender
        self._policy = policy
        self._accepts = settings.unsigned_devices == "accept"
        self._clock = clock
        self._drafts = drafts
        self._wanted: dict[str, tuple[str, str, bool]] = {}  # room, event and whether to write
        self._bells: dict[str, asyncio.Event] = {}
        self._changed: asyncio.Queue[str] = asyncio.Queue()

    def serves(self, room_id: str) -> bool:
        """Only what was said in Matrix."""
        return is_matrix(room_id)

    def fits(self, conversation: Conversation) -> bool:
        """A person's own is for a direct chat with them (T-013); who came in may not have spoken yet."""
        view, account = self._client.room(conversation.room_id), self._client.account
        reads = may_read(view, conversation.scope, account, self._policy)
        return reads and is_matrix(view.room_id)

    def room_for(self, scope: str, *, encrypted: bool) -> str | None:
        """A room in which nobody has spoken yet may do (T-013)."""
        return self._client.room_for(scope, self._policy, encrypted)

    def attend(self, row: Waiting) -> None:
        """Mark the event as read and write on its room."""
        self._drafts.attend(row)
        self._want(row, typing=True)

    def rest(self, row: Waiting) -> None:
        """Write no more."""
        self._drafts.rest(row)
        self._want(row, typing=False)

    def draft(self, conversation_id: str, piece: str) -> None:
        """Let the answer grow before people's eyes."""
        if room_id := self._drafts.say(conversation_id, piece):
            self._sender.grow(conversation_id, room_id)

    def shown(self, row: Waiting) -> str | None:
        """The text so far of an answer that people see growing, if that is known."""
        return self._drafts.shown(row)

    def retract(self, conversation_id: str) -> None:
        """Take away what was seen of it; what follows is shown in an event of its own."""
        if room_id := self._drafts.retract(conversation_id):
            self._sender.grow(conversation_id, room_id)

    def wait(self, conversation_id: str, wait: Wait) -> None:
        """Nothing: the typing sign goes on, and a long wait has a notice of its own."""

    def gate(self, conversation_id: str, name: str, doing: str) -> None:
        """Show below the text so far what is done, if there is some."""
        if room_id := self._drafts.use(conversation_id, doing):
            self._sender.grow(conversation_id, room_id)

    def speak(self, conversation_id: str) -> None:
        """Something is in the outbox."""
        self._sender.wake()

    async def quote(self, row: Waiting) -> Quote | None:
        """What a row replies to; None when it cannot be had, read or believed as if it just came."""
        room_id, event_id = row.room_id, str(row.replies_to)
        try:
            async with asyncio.timeout(QUOTE_SECONDS):
                raw = await self._client.event(room_id, event_id)
        except (HomeserverUnavailable, SendRefused, LoginRefused, TimeoutError) as error:
            log.info("quote not found room=%s event=%s reason=%s", room_id, event_id, error)
            return None
        events, _ = well_formed([raw])
        if not events or (raw["event_id"], raw.get("room_id", room_id)) != (event_id, room_id):
            return None
        event = await self._believed(room_id, raw)
        return self._quote(room_id, event) if event else None

    async def _believed(self, room_id: str, raw: Json) -> Json | None:
        """An event in clear, if it may be its sender's word; in clear it may be anybody's there."""
        if not raw["content"]:  # taken back
            return raw
        async with self._stores.database.transaction() as tx:
            if raw["type"] != "m.room.encrypted":
                encrypted = await self._stores.known.is_encrypted(tx, room_id)
                return None if encrypted or self._client.room(room_id).encrypted else raw
            opened, verdict = await self._client.checked(tx, room_id, raw)
        held = worth(verdict, encrypted=True, accept=self._accepts) == "held"
        return None if opened is None or verdict in NOT_THEIRS or held else opened.event

    def _quote(self, room_id: str, event: Json) -> Quote | None:
        sender = string(event, "sender")
        members = self._client.room(room_id).members
        name = text.display_name(members.get(sender, "")) or text.display_name(sender)
        content = mapping(event.get("content"))
        if string(content, "msgtype") == "m.notice":  # what a bot says may be asked about
            content = {**content, "msgtype": "m.text"}
        body = readable(content, name) if event["type"] == "m.room.message" else ""
        if content and not body:
            return None
        if sender == self._client.account.user_id:
            sender = name = ""
        sent_at = time_sent(event["origin_server_ts"], self._clock.now())
        return Quote(sender, name, body, self._client.by_our_clock(sent_at))

    def _want(self, row: Waiting, *, typing: bool) -> None:
        self._wanted[row.conversation_id] = (row.room_id, row.event_id, typing)
        self._changed.put_nowait(row.conversation_id)

    async def run(self) -> None:
        """Show what is wanted, until cancelled."""
        async with asyncio.TaskGroup() as conversations:
            while True:
                conversation_id = await self._changed.get()
                if conversation_id in self._bells:
                    self._bells[conversation_id].set()
                else:
                    self._bells[conversation_id] = asyncio.Event()
                    conversations.create_task(self._follow(conversation_id))

    async def _follow(self, conversation_id: str) -> None:
        bell, typing, read = self._bells[conversation_id], False, ""
        while True:
            bell.clear()
            room_id, event_id, wanted = self._wanted[conversation_id]
            if not wanted and await self._rung(bell, LINGER_SECONDS):
                continue
            try:
                if event_id != read:
                    read = event_id
                    await self._client.read(room_id, read)
                # A room has one typing sign for all of its conversations.
                writing = any(on and room == room_id for room, _, on in self._wanted.values())
                if wanted or (typing and not writing):
                    await self._client.typing(room_id, on=wanted)
                    typing = wanted
            except (HomeserverUnavailable, SendRefused, LoginRefused) as error:
                log.debug("sign not shown room=%s reason=%s", room_id, error)
            if wanted:
                await self._rung(bell, REFRESH_SECONDS)
            elif not bell.is_set():
                del self._bells[conversation_id]
                return

    async def _rung(self, bell: asyncio.Event, seconds: float) -> bool:
        """Wait for the next change, so long at most; whether one came."""
        try:
            async with asyncio.timeout(seconds):
                return await bell.wait()
        except TimeoutError:
            return False
