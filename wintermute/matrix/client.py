"""Our typed face of nio: what the daemon asks of a homeserver, encryption included.

nio keeps keys, members and the HTTP session. Reading /sync, sending and retrying are ours: nio's
own would hide waits of up to a minute, and would send in clear where it failed to see encryption.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aiohttp import ClientError
from nio import (
    AsyncClient,
    AsyncClientConfig,
    EncryptionError,
    MegolmEvent,
    SyncResponse,
)
from nio.exceptions import (
    GroupEncryptionError,
    LocalProtocolError,
    OlmTrustError,
    ProtocolError,
)
from peewee import PeeweeException

from wintermute.clock import Clock
from wintermute.errors import ConfigurationError, HomeserverUnavailable, SendRefused
from wintermute.ids import NewId
from wintermute.matrix.guard import install
from wintermute.matrix.http import call, path
from wintermute.matrix.inbox import Account, RoomView
from wintermute.matrix.keys import Keys, keep_before_upload
from wintermute.matrix.session import Session, store_file, store_problem
from wintermute.matrix.sieve import SyncBatch, megolm, page, sift
from wintermute.messages import Json

SYNC_FILTER = (
    '{"presence":{"not_types":["*"]},"account_data":{"not_types":["*"]},"room":{"timeline":{"limit":100},'
    '"ephemeral":{"not_types":["*"]},"account_data":{"not_types":["*"]}}}'
)
TYPING_MS = 30_000
UNREADABLE = (
    # A missing key, or what nio does with an event or a decrypted text that is not what it expects.
    EncryptionError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RecursionError,
)


class MatrixClient:
    """The homeserver as the rest of this folder sees it."""

    def __init__(self, nio: AsyncClient, account: Account, keys: Keys) -> None:
        self._nio = nio
        self._keys = keys
        self.account = account

    @property
    def key_trouble(self) -> str:
        """Why the homeserver refuses our keys; empty when it does not."""
        return self._keys.trouble

    async def sync(self, since: str | None, *, full_state: bool, wait_s: float) -> SyncBatch:
        """What happened since a token; keys and members are known to nio when it returns."""
        query: dict[str, Any] = {"filter": SYNC_FILTER, "timeout": int(wait_s * 1000)}
        if since:
            query["since"] = since
        if full_state:
            query |= {"full_state": "true", "timeout": 0}
        target = f"{path('sync')}?{urlencode(query)}"
        # A long poll notices a silent network soon; a catch-up may take the homeserver its time.
        seconds = wait_s + 10 if wait_s and not full_state else 60
        batch = sift(await call(self._nio, "GET", target, seconds=seconds))
        if batch is None:
            raise HomeserverUnavailable("the homeserver's sync has no token")
        response = SyncResponse.from_dict(batch.for_nio)
        if not isinstance(response, SyncResponse):
            raise HomeserverUnavailable("the homeserver's sync cannot be read")
        await self._nio.receive_response(response)
        return replace(batch, malformed=batch.malformed + self._keys.take_dropped())

    async def page(
        self, room_id: str, start: str, end: str | None
    ) -> tuple[list[Json], str | None]:
        """Events before the token `start`, oldest first, and the token of what is before them."""
        query = {"dir": "b", "from": start, "limit": "100"} | ({"to": end} if end else {})
        target = f"{path('rooms', room_id, 'messages')}?{urlencode(query)}"
        return page(await call(self._nio, "GET", target))

    async def newest(self, room_id: str) -> AsyncIterator[Json]:
        """The events of a room, newest first, decrypted where we can."""
        start: str | None = ""
        while start is not None:
            query = {"dir": "b", "limit": "50"} | ({"from": start} if start else {})
            target = f"{path('rooms', room_id, 'messages')}?{urlencode(query)}"
            events, start = page(await call(self._nio, "GET", target))
            for event in reversed(events):
                yield self.decrypted(room_id, event) or event
            if not events:
                return

    def decrypted(self, room_id: str, event: Json) -> Json | None:
        """A room event in clear; None while its key is missing or it is garbage."""
        if event["type"] != "m.room.encrypted":
            return event
        encrypted = megolm(event)
        if encrypted is None or self._nio.olm is None:
            return None
        try:
            parsed = MegolmEvent.from_dict(encrypted)
            if not isinstance(parsed, MegolmEvent):
                return None
            parsed.room_id = room_id
            source = self._nio.decrypt_event(parsed).source
        except UNREADABLE:
            return None
        return source if isinstance(source, dict) else None

    @property
    def rooms(self) -> tuple[str, ...]:
        """The rooms that we are in, as of the last sync."""
        return tuple(self._nio.rooms)

    def room(self, room_id: str) -> RoomView:
        """Who is in a room and whether it is encrypted, as of the last sync."""
        room = self._nio.rooms.get(room_id)
        if room is None:
            return RoomView(room_id, {}, frozenset(), encrypted=False)
        invited = frozenset(room.invited_users)
        members = {
            user.user_id: user.display_name or ""
            for user in room.users.values()
            if user.user_id not in invited
        }
        return RoomView(room_id, members, invited, encrypted=room.encrypted)

    async def upkeep(self) -> None:
        """What encryption wants done after each sync: upload, query and claim keys, to-device."""
        with translated():
            await self._keys.upkeep()

    async def send(
        self,
        room_id: str,
        content: Json,
        txn_id: str,
        *,
        encrypted: bool,
        event_type: str = "m.room.message",
    ) -> str:
        """Send an event once per `txn_id`; its id.

        `encrypted`: what the rest of the program knows of the room. It is never sent in clear if
        either we or nio believe it is encrypted.
        """
        room = self._nio.rooms.get(room_id)
        payload = content
        if room is not None and room.encrypted and self._nio.olm is not None:
            with translated():
                await self._keys.share(room_id)
                # (What it relates to stays readable beside it, as the homeserver needs it.)
                event_type, payload = self._nio.encrypt(room_id, event_type, content)
        elif encrypted or (room is not None and room.encrypted):
            raise SendRefused(
                "the room is encrypted and we cannot encrypt for it (see matrix.encryption)",
                "NOT_ENCRYPTED",
            )
        target = path("rooms", room_id, "send", event_type, txn_id)
        answer = await call(self._nio, "PUT", target, payload)
        event_id = answer.get("event_id")
        if not isinstance(event_id, str) or not event_id:
            raise HomeserverUnavailable("the homeserver named no event")
        return event_id

    async def join(self, room_id: str) -> None:
        """Go into a room."""
        await call(self._nio, "POST", path("rooms", room_id, "join"), {})

    async def leave(self, room_id: str) -> None:
        """Leave a room, or decline its invitation."""
        await call(self._nio, "POST", path("rooms", room_id, "leave"), {})

    async def typing(self, room_id: str, *, on: bool) -> None:
        """Show or hide that we write."""
        body: Json = {"typing": on} | ({"timeout": TYPING_MS} if on else {})
        await call(self._nio, "PUT", path("rooms", room_id, "typing", self.account.user_id), body)

    async def read(self, room_id: str, event_id: str) -> None:
        """Mark a room as read up to an event."""
        await call(self._nio, "POST", path("rooms", room_id, "receipt", "m.read", event_id), {})


@contextlib.asynccontextmanager
async def open_client(
    homeserver: str,
    session: Session,
    folder: Path,
    new_id: NewId,
    clock: Clock,
    *,
    encryption: bool,
) -> AsyncIterator[MatrixClient]:
    """A client for a login, its key store open; closed at the end.

    `folder` holds nio's key store: a database file of its own, never opened by our driver.
    """
    config = AsyncClientConfig(
        encryption_enabled=encryption,
        pickle_key=session.pickle_key,
        store_sync_tokens=False,
        max_timeouts=0,
        max_limit_exceeded=0,
        request_timeout=30,
    )
    nio = AsyncClient(homeserver, session.user_id, session.device_id, str(folder), config)
    account = Account(session.user_id, session.device_id, display_name="")
    keys = Keys(nio, new_id, clock)
    try:
        if encryption:
            await asyncio.to_thread(_restore, nio, session, store_file(folder, session))
            install(nio, keys.drop, clock)
            keep_before_upload(nio.olm)
        else:
            nio.access_token = session.access_token
        yield MatrixClient(nio, account, keys)
    finally:
        await nio.close()
        if nio.store is not None:
            nio.store.database.close()


def _restore(nio: AsyncClient, session: Session, file: Path) -> None:
    """Open the key store; a new one when there is none. Raises: ConfigurationError."""
    problem = store_problem(file, mode="rw") if file.exists() else None
    if problem is None:
        try:
            nio.restore_login(session.user_id, session.device_id, session.access_token)
        except (PeeweeException, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
    if problem is not None:
        raise ConfigurationError(
            f"the encryption keys in {file} cannot be read ({problem}): restore the Matrix folder "
            "from a backup, or run `wintermute matrix reset-crypto`, which moves them aside for a "
            "new device"
        )


@contextlib.contextmanager
def translated() -> Any:
    """nio's own failures as ours."""
    try:
        yield
    except (ClientError, TimeoutError, OSError) as error:
        raise HomeserverUnavailable(str(error) or type(error).__name__) from error
    except (
        EncryptionError,
        GroupEncryptionError,
        LocalProtocolError,
        OlmTrustError,
        ProtocolError,
    ) as error:
        raise HomeserverUnavailable(f"encryption: {error}") from error
