"""A person at another Matrix client: an independent second user that watches the bot."""

import asyncio
import json
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from urllib.parse import quote

from nio import (
    AsyncClient,
    AsyncClientConfig,
    DummyEvent,
    ErrorResponse,
    MegolmEvent,
    ReceiptEvent,
    RoomPreset,
    SyncResponse,
    TypingNoticeEvent,
)

from tests.world.clock import WITHIN
from tests.world.homeserver import Homeserver, Login

Json = dict[str, Any]
CLIENT = "/_matrix/client/v3"
TIMELINE = {"room": {"timeline": {"limit": 5000}}}


@dataclass(frozen=True, slots=True)
class Message:
    """One room event as this person sees it; `encrypted` says how it travelled.

    One that could not be decrypted (yet) has the type `m.room.encrypted`.
    """

    event_id: str
    sender: str
    type: str
    content: Json
    encrypted: bool

    @property
    def body(self) -> str:
        """The text, if it has one."""
        return str(self.content.get("body", ""))


def under(root: str, last: str = "") -> Json:
    """The content of a message in a thread, as clients make it."""
    relation = {"rel_type": "m.thread", "event_id": root, "is_falling_back": True}
    return {"m.relates_to": {**relation, "m.in_reply_to": {"event_id": last or root}}}


M = TypeVar("M", bound=Message)


class AtClient(ABC, Generic[M]):
    """A person at any client, by what a client gives: events, and ways to wait and to send."""

    login: Login
    _events: dict[str, dict[str, M]]

    @abstractmethod
    def members(self, room: str) -> frozenset[str]:
        """The people who have joined, as far as this person knows."""

    @abstractmethod
    async def until(self, true: Callable[[], bool], within: float = WITHIN, what: str = "") -> None:
        """Wait until a condition over what was seen holds."""

    @abstractmethod
    async def send_event(self, room: str, kind: str, content: Json) -> str:
        """Any event of a room, encrypted where the room is; its id."""

    @property
    def user_id(self) -> str:
        """The full Matrix id."""
        return self.login.user_id

    def events(self, room: str) -> list[M]:
        """Every timeline event seen in a room, in order."""
        return list(self._events.get(room, {}).values())

    def messages(self, room: str, sender: str | None = None) -> list[M]:
        """The messages seen in a room, in order, of everybody or of one sender."""
        return [
            event
            for event in self.events(room)
            if event.type == "m.room.message" and sender in (None, event.sender)
        ]

    async def wait_for(self, room: str, wanted: Callable[[M], bool], within: float = WITHIN) -> M:
        """The first message in a room that is wanted."""
        await self.until(lambda: any(map(wanted, self.messages(room))), within, "a message")
        return next(filter(wanted, self.messages(room)))

    async def wait_for_count(
        self, room: str, sender: str, count: int, within: float = WITHIN
    ) -> list[M]:
        """All messages of a sender once there are at least so many; each may take so long."""
        for number in range(len(self.messages(room, sender)) + 1, count + 1):
            is_there = partial(self._has_said, room, sender, number)
            await self.until(is_there, within, f"{number} of {count} messages of {sender}")
        return self.messages(room, sender)

    def _has_said(self, room: str, sender: str, count: int) -> bool:
        return len(self.messages(room, sender)) >= count

    async def wait_joined(self, room: str, user: str, within: float = WITHIN) -> None:
        """Until a user is a member of a room."""
        await self.until(lambda: user in self.members(room), within, f"{user} to join")

    async def send(self, room: str, text: str, **content: Any) -> str:
        """Say something (encrypted where the room is); more content by keyword; the event id."""
        return await self.send_event(
            room, "m.room.message", {"msgtype": "m.text", "body": text, **content}
        )

    async def edit(self, room: str, event_id: str, text: str) -> str:
        """Replace the text of an earlier message."""
        return await self.send(
            room,
            f"* {text}",
            **{
                "m.new_content": {"msgtype": "m.text", "body": text},
                "m.relates_to": {"rel_type": "m.replace", "event_id": event_id},
            },
        )

    async def react(self, room: str, event_id: str, mark: str) -> str:
        """Put an emoji on an event."""
        relation = {"rel_type": "m.annotation", "event_id": event_id, "key": mark}
        return await self.send_event(room, "m.reaction", {"m.relates_to": relation})


class MatrixUser(AtClient[Message]):
    """Syncs while the block is open; every wait ends with the sync that brings the awaited."""

    def __init__(self, url: str, login: Login, store: Path) -> None:
        store.mkdir(parents=True, exist_ok=True)
        config = AsyncClientConfig(
            pickle_key="a person's own secret",
            max_timeout_retry_wait_time=0.2,  # an outage is waited out, closely
        )
        self._client = AsyncClient(
            url, login.user_id, login.device_id, store_path=str(store), config=config
        )
        self.login = login
        self._events: dict[str, dict[str, Message]] = {}
        self._locked: dict[str, dict[str, MegolmEvent]] = {}
        self._typing: dict[str, list[frozenset[str]]] = {}
        self._receipts: dict[str, dict[str, str]] = {}
        self._begun: Counter[str] = Counter()
        self._client.add_to_device_callback(self._note_begun, DummyEvent)
        self._news = asyncio.Condition()
        self._tasks = asyncio.TaskGroup()
        self._syncing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._client.restore_login(
            self.login.user_id, self.login.device_id, self.login.access_token
        )
        try:
            await self._sync_once(0)
            await self._tasks.__aenter__()
        except BaseException:
            await self._close()
            raise
        self._syncing = self._tasks.create_task(self._sync())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._syncing:
            self._syncing.cancel()
        # A failed assertion must come out as it is, not wrapped in a group; a cancellation may
        # be the group's own, after the sync broke.
        cancelled = isinstance(error, asyncio.CancelledError)
        try:
            await self._tasks.__aexit__(*((kind, error, at) if cancelled else (None, None, None)))
        finally:
            await self._close()

    # What was seen -----------------------------------------------------------------------

    def typing(self, room: str) -> frozenset[str]:
        """Who types now."""
        return self.typing_seen(room)[-1] if self.typing_seen(room) else frozenset()

    def typing_seen(self, room: str) -> list[frozenset[str]]:
        """Every change of who types, in order."""
        return self._typing.get(room, [])

    def receipts(self, room: str) -> dict[str, str]:
        """Who has read up to which event."""
        return self._receipts.get(room, {})

    def members(self, room: str) -> frozenset[str]:
        """The people who have joined, as far as this person knows."""
        known = self._client.rooms.get(room)
        return frozenset(known.users) - frozenset(known.invited_users) if known else frozenset()

    def invitations(self) -> frozenset[str]:
        """Rooms this person is invited to."""
        return frozenset(self._client.invited_rooms)

    def begun_by(self, user: str) -> int:
        """How often a user's devices began an Olm session anew with this one (`m.dummy`)."""
        return self._begun[user]

    # Waiting -----------------------------------------------------------------------------

    async def until(self, true: Callable[[], bool], within: float = WITHIN, what: str = "") -> None:
        """Wait until a condition over what was seen holds."""
        try:
            async with asyncio.timeout(within), self._news:
                await self._news.wait_for(true)
        except TimeoutError:
            seen = [m for room in self._events for m in self.events(room)][-20:]
            lines = "\n".join(f"{m.type} {m.sender} {m.body[:80]!r}" for m in seen)
            raise AssertionError(f"waited {within} s for {what or true}; seen:\n{lines}") from None

    # Doing -------------------------------------------------------------------------------

    async def api(self, method: str, path: str, body: object = None) -> tuple[int, Json]:
        """Any request as this person: status and answer."""
        headers = {
            "Authorization": f"Bearer {self.login.access_token}",
            "Content-Type": "application/json",
        }
        payload = None if body is None else json.dumps(body)
        async with await self._client.send(method, path, payload, headers) as answer:
            return answer.status, await answer.json()

    async def create_room(
        self,
        invite: Iterable[str] = (),
        *,
        encrypted: bool = False,
        direct: bool = True,
        name: str | None = None,
        preset: str = "trusted_private_chat",
    ) -> str:
        """A new room, once this person's own sync knows it; its id."""
        algorithm = {"algorithm": "m.megolm.v1.aes-sha2"}
        state = {"type": "m.room.encryption", "state_key": "", "content": algorithm}
        answer = successful(
            await self._client.room_create(
                name=name,
                is_direct=direct,
                preset=RoomPreset(preset),
                invite=list(invite),
                initial_state=[state] if encrypted else [],
            )
        )
        room: str = answer.room_id
        await self.until(lambda: self._knows(room, encrypted), what="the new room")
        return room

    async def join(self, room: str) -> None:
        """Accept an invitation."""
        await self.until(lambda: room in self.invitations(), what="the invitation")
        successful(await self._client.join(room))
        await self.wait_joined(room, self.user_id)

    async def send_event(self, room: str, kind: str, content: Json) -> str:
        """Any event of a room, encrypted where the room is; its id."""
        if self._client.should_query_keys:  # nio would leave out devices it has not heard of
            await self._client.keys_query()
        sent = successful(
            await self._client.room_send(room, kind, content, ignore_unverified_devices=True)
        )
        event_id: str = sent.event_id
        return event_id

    def begin_sessions(self) -> None:
        """The next message in each room has a new room key, which everybody there gets.

        nio gives a key once. Current clients (matrix-js-sdk) give it again to a device that began a
        new Olm session, such as one whose data were put back; this is the nearest nio comes to that.
        """
        self._client.olm.outbound_group_sessions.clear()

    async def redact(self, room: str, event_id: str) -> None:
        """Take an event back."""
        successful(await self._client.room_redact(room, event_id))

    async def invite(self, room: str, user: str) -> None:
        """Ask a user in."""
        successful(await self._client.room_invite(room, user))

    async def kick(self, room: str, user: str) -> None:
        """Throw a user out."""
        successful(await self._client.room_kick(room, user))

    async def leave(self, room: str) -> None:
        """Go."""
        successful(await self._client.room_leave(room))

    async def send_to_device(
        self, user: str, kind: str, content: object, device: str = "*"
    ) -> None:
        """Put anything at all into another user's to-device queue."""
        path = f"{CLIENT}/sendToDevice/{quote(kind, safe='')}/{secrets.token_hex(8)}"
        status, answer = await self.api("PUT", path, {"messages": {user: {device: content}}})
        assert status == 200, answer

    async def history(self, room: str) -> list[Message]:
        """All messages the homeserver has, oldest first, each decrypted if possible."""
        found: list[Message] = []
        start = ""
        while True:
            page = successful(await self._client.room_messages(room, start=start, limit=500))
            found += [seen(event) for event in page.chunk]
            start = page.end
            if not start or not page.chunk:
                break
        return [event for event in reversed(found) if event.type == "m.room.message"]

    # Syncing -----------------------------------------------------------------------------

    async def _sync(self) -> None:
        while True:
            await self._sync_once(30_000)

    async def _sync_once(self, timeout_ms: int) -> None:
        answer = await self._client.sync(timeout=timeout_ms, sync_filter=TIMELINE)
        if not isinstance(answer, SyncResponse):
            if answer.status_code == "M_UNKNOWN_TOKEN":
                raise AssertionError(f"{self.user_id} was logged out: {answer}")
            await asyncio.sleep(0.1)  # a homeserver on its way up or down
            return
        await self._keep_keys()
        async with self._news:
            for room, info in {**answer.rooms.join, **answer.rooms.leave}.items():
                for event in info.timeline.events:
                    self._note(room, event)
                for event in getattr(info, "ephemeral", ()):
                    self._note_ephemeral(room, event)
            self._unlock()
            self._news.notify_all()

    async def _keep_keys(self) -> None:
        client = self._client
        if client.should_upload_keys:
            await client.keys_upload()
        if client.should_query_keys:
            await client.keys_query()
        await client.send_to_device_messages()

    def _note(self, room: str, event: Any) -> None:
        message = seen(event)
        self._events.setdefault(room, {}).setdefault(message.event_id, message)
        if isinstance(event, MegolmEvent):
            self._locked.setdefault(room, {})[message.event_id] = event

    def _note_begun(self, event: DummyEvent) -> None:
        self._begun[event.sender] += 1

    def _note_ephemeral(self, room: str, event: Any) -> None:
        if isinstance(event, TypingNoticeEvent):
            self._typing.setdefault(room, []).append(frozenset(event.users))
        elif isinstance(event, ReceiptEvent):
            read = {receipt.user_id: receipt.event_id for receipt in event.receipts}
            self._receipts.setdefault(room, {}).update(read)

    def _unlock(self) -> None:
        """A key may come after its message: try again, keeping the message's place."""
        for room, events in self._locked.items():
            for event_id, event in list(events.items()):
                opened = self._client.olm._decrypt_megolm_no_error(event)
                if opened:
                    self._events[room][event_id] = seen(opened)
                    del events[event_id]

    def _knows(self, room: str, encrypted: bool) -> bool:
        known = self._client.rooms.get(room)
        return known is not None and known.encrypted == encrypted

    async def _close(self) -> None:
        await self._client.close()
        if self._client.store:
            self._client.store.database.close()


def seen(event: Any) -> Message:
    """What nio made of an event, as a Message."""
    source: Json = event.source
    return Message(
        event_id=source.get("event_id", ""),
        sender=source.get("sender", ""),
        type=source.get("type", ""),
        content=source.get("content", {}),
        encrypted=bool(getattr(event, "decrypted", False)) or isinstance(event, MegolmEvent),
    )


def successful(answer: Any) -> Any:
    """nio returns errors as values; here each one is a failed test."""
    assert not isinstance(answer, ErrorResponse), str(answer)
    return answer


def devices_of(homeserver: Homeserver, login: Login) -> set[str]:
    """The devices of an account."""
    answer = homeserver.request("GET", f"{CLIENT}/devices", token=login.access_token)
    return {device["device_id"] for device in answer["devices"]}
