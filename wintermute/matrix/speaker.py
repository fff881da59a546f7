"""Signals of a conversation in its room: read receipts, typing and drafts. They may fail without harm.

It also fetches earlier messages from the homeserver, when people reply to one (F-026).
"""

import asyncio
import logging

from wintermute import text
from wintermute.clock import Clock
from wintermute.config.schema import Matrix
from wintermute.errors import HomeserverUnavailable, LoginRefused, SendRefused
from wintermute.llm.backend import Wait
from wintermute.loom.conversations import Conversation
from wintermute.mailbox.inbox import InboxRow
from wintermute.mailbox.outbox import is_matrix
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.drafts import Drafts
from wintermute.matrix.inbox import Policy, may_read, readable, string, time_sent
from wintermute.matrix.outbox import Sender
from wintermute.matrix.people import NOT_THEIRS
from wintermute.matrix.sync_response import well_formed
from wintermute.matrix.trust import acceptance
from wintermute.messages import Json, Quote, mapping
from wintermute.stores import Stores

log = logging.getLogger(__name__)

QUOTE_SECONDS = 5.0  # the longest wait for a quoted message
REFRESH_SECONDS = 20.0  # a typing notification ends after 30
LINGER_SECONDS = 0.5  # typing ends after the answer is sent, and not before another message


class MatrixSpeaker:
    """Shows signals of a conversation in its room, in the background."""

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
        self._wanted: dict[str, tuple[str, str, bool]] = {}  # room, event, and True for typing
        self._wakeups: dict[str, asyncio.Event] = {}
        self._changed: asyncio.Queue[str] = asyncio.Queue()

    def serves(self, room_id: str) -> bool:
        """Return True for a Matrix room."""
        return is_matrix(room_id)

    def fits(self, conversation: Conversation) -> bool:
        """Check if a room fits the conversation's scope: a person's only a direct chat with them (T-013)."""
        view, account = self._client.room(conversation.room_id), self._client.account
        reads = may_read(view, conversation.scope, account, self._policy)
        return reads and is_matrix(view.room_id)

    def room_for(self, scope: str, *, encrypted: bool) -> str | None:
        """Return a room for a scope, even if nobody has written there yet (T-013)."""
        return self._client.room_for(scope, self._policy, encrypted)

    def attend(self, row: InboxRow) -> None:
        """Mark an event as read and show typing in its room."""
        self._drafts.attend(row)
        self._request(row, typing=True)

    def rest(self, row: InboxRow) -> None:
        """Stop typing."""
        self._drafts.rest(row)
        self._request(row, typing=False)

    def draft(self, conversation_id: str, piece: str) -> None:
        """Add text to the streamed answer."""
        if room_id := self._drafts.say(conversation_id, piece):
            self._sender.grow(conversation_id, room_id)

    def shown(self, row: InboxRow) -> str | None:
        """Return the shown text of a streamed answer, if it is known."""
        return self._drafts.shown(row)

    def retract(self, conversation_id: str) -> None:
        """Redact the draft; later text gets an event of its own."""
        if room_id := self._drafts.retract(conversation_id):
            self._sender.grow(conversation_id, room_id)

    def wait(self, conversation_id: str, wait: Wait) -> None:
        """Do nothing: typing goes on, and a long wait has a notice."""

    def gate(self, conversation_id: str, name: str, doing: str) -> None:
        """Show the running tool below the text so far, if there is any."""
        if room_id := self._drafts.set_tool(conversation_id, doing):
            self._sender.grow(conversation_id, room_id)

    def speak(self, conversation_id: str) -> None:
        """Look for new messages in the outbox."""
        self._sender.wake()

    async def quote(self, row: InboxRow) -> Quote | None:
        """Fetch the message that a row replies to; None if it is missing, unreadable or not trusted."""
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
        event = await self._trusted(room_id, raw)
        return self._quote(room_id, event) if event else None

    async def _trusted(self, room_id: str, raw: Json) -> Json | None:
        """Return the decrypted event if its sender is trusted; None for unencrypted ones in encrypted rooms."""
        if not raw["content"]:  # redacted
            return raw
        async with self._stores.database.transaction() as tx:
            if raw["type"] != "m.room.encrypted":
                encrypted = await self._stores.known.is_encrypted(tx, room_id)
                return None if encrypted or self._client.room(room_id).encrypted else raw
            opened, verdict = await self._client.decrypt_checked(tx, room_id, raw)
        held = acceptance(verdict, encrypted=True, accept=self._accepts) == "held"
        return None if opened is None or verdict in NOT_THEIRS or held else opened.event

    def _quote(self, room_id: str, event: Json) -> Quote | None:
        sender = string(event, "sender")
        members = self._client.room(room_id).members
        name = text.display_name(members.get(sender, "")) or text.display_name(sender)
        content = mapping(event.get("content"))
        if string(content, "msgtype") == "m.notice":  # people may ask about a bot's message
            content = {**content, "msgtype": "m.text"}
        body = readable(content, name) if event["type"] == "m.room.message" else ""
        if content and not body:
            return None
        if sender == self._client.account.user_id:
            sender = name = ""
        sent_at = time_sent(event["origin_server_ts"], self._clock.now())
        return Quote(sender, name, body, self._client.to_our_clock(sent_at))

    def _request(self, row: InboxRow, *, typing: bool) -> None:
        self._wanted[row.conversation_id] = (row.room_id, row.event_id, typing)
        self._changed.put_nowait(row.conversation_id)

    async def run(self) -> None:
        """Update read receipts and typing until cancelled."""
        async with asyncio.TaskGroup() as conversations:
            while True:
                conversation_id = await self._changed.get()
                if conversation_id in self._wakeups:
                    self._wakeups[conversation_id].set()
                else:
                    self._wakeups[conversation_id] = asyncio.Event()
                    conversations.create_task(self._follow(conversation_id))

    async def _follow(self, conversation_id: str) -> None:
        wakeup, typing, read = self._wakeups[conversation_id], False, ""
        while True:
            wakeup.clear()
            room_id, event_id, wanted = self._wanted[conversation_id]
            if not wanted and await self._is_changed(wakeup, LINGER_SECONDS):
                continue
            try:
                if event_id != read:
                    read = event_id
                    await self._client.read(room_id, read)
                # A room has one typing notification for all its conversations.
                writing = any(on and room == room_id for room, _, on in self._wanted.values())
                if wanted or (typing and not writing):
                    await self._client.typing(room_id, on=wanted)
                    typing = wanted
            except (HomeserverUnavailable, SendRefused, LoginRefused) as error:
                log.debug("receipt or typing not sent room=%s reason=%s", room_id, error)
            if wanted:
                await self._is_changed(wakeup, REFRESH_SECONDS)
            elif not wakeup.is_set():
                del self._wakeups[conversation_id]
                return

    async def _is_changed(self, wakeup: asyncio.Event, seconds: float) -> bool:
        """Wait for the next change; False after `seconds` without one."""
        try:
            async with asyncio.timeout(seconds):
                return await wakeup.wait()
        except TimeoutError:
            return False
