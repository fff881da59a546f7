"""Our typed face of nio: what the daemon asks of a homeserver, encryption included.

nio keeps keys, members and the HTTP session. Reading /sync, sending and retrying are ours: nio's
own would hide waits of up to a minute, and would send in clear where it failed to see encryption.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
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
from wintermute.config.schema import Matrix
from wintermute.errors import (
    AudienceChanged,
    ConfigurationError,
    HomeserverUnavailable,
    SendRefused,
)
from wintermute.ids import NewId
from wintermute.matrix.cross_signing import CrossSigning, IdentityState
from wintermute.matrix.guard import install
from wintermute.matrix.http import call, path
from wintermute.matrix.inbox import Account, Policy, RoomView, may_read
from wintermute.matrix.keys import Keys, keep_before_upload, known
from wintermute.matrix.people import Device, People, Verdict, fingerprint
from wintermute.matrix.poll import SHORT_MS, Poll
from wintermute.matrix.seeds import Seeds
from wintermute.matrix.session import Session, store_file, store_problem
from wintermute.matrix.sieve import RoomBatch, SyncBatch, megolm, page, sift
from wintermute.matrix.signing import ED25519
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


@dataclass(frozen=True, slots=True)
class Opened:
    """An event in clear, and whose device its session belongs to, if that is any we know."""

    event: Json
    device: Device | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """Who may come into a room and who may read its past (Matrix spec, `m.room.join_rules`,
    `m.room.history_visibility`), with what holds while the homeserver says nothing."""

    join_rule: str = "invite"
    history: str = "shared"


class MatrixClient:
    """The homeserver as the rest of this folder sees it."""

    def __init__(self, nio: AsyncClient, account: Account, keys: Keys) -> None:
        self._nio = nio
        self._keys = keys
        self._poll = Poll()
        self._rules: dict[str, Rules] = {}
        self._views: dict[str, RoomView] = {}
        self.account = account
        self.people = keys.people

    @property
    def identity(self) -> IdentityState:
        """How it stands with our cross-signing identity."""
        if self._nio.olm is None:
            return IdentityState("ok", "none: matrix.encryption is off")
        return self._keys.identity.state

    @property
    def keeps_identity(self) -> bool:
        """Whether our device is or will be signed by the identity of earlier runs."""
        return self._nio.olm is not None and self._keys.identity.keeps_identity

    @property
    def secrets(self) -> tuple[str, ...]:
        """The seeds of our identity, also before it is made."""
        return self._keys.identity.secrets

    @property
    def device_key(self) -> str:
        """The public key of our device; "" without encryption."""
        return str(self._nio.olm.account.identity_keys["ed25519"]) if self._nio.olm else ""

    @property
    def device_line(self) -> str:
        """Our device as people compare it."""
        key = f", fingerprint {fingerprint(self.device_key)}" if self.device_key else ""
        return f"{self.account.device_id}{key}"

    @property
    def master_key(self) -> str:
        """The public key of our identity while it is the one that is served; else ""."""
        return self._keys.identity.master

    async def replace_identity(self, seeds: Seeds) -> IdentityState:
        """Give the homeserver another identity of ours; how it stands then.

        Raises: ApprovalNeeded as long as it wants more than our login and password.
        """
        return await self._keys.replace_identity(seeds)

    async def sign_all_devices(self) -> None:
        """Vouch for every device of our account; the bot never does."""
        with translated():
            await self._keys.identity.sign_all_devices()

    async def fresh_keys(self, user: str) -> dict[str, str]:
        """The keys of a user's devices and identity as they are served now, by their ids."""
        await self._keys.ask({user})
        devices = self._nio.olm.device_store.active_user_devices(user)
        found = {f"{ED25519}{device.id}": str(device.ed25519) for device in devices}
        master = self.people.master_key(user)
        return found | ({f"{ED25519}{master}": master} if master else {})

    async def send_to_device(
        self, kind: str, user: str, device: str, content: Json, txn_id: str
    ) -> None:
        """Say something in clear to one device of a user, or to all with `*`; once per `txn_id`."""
        body = {"messages": {user: {device: content}}}
        await call(self._nio, "PUT", path("sendToDevice", kind, txn_id), body)

    @property
    def key_trouble(self) -> str:
        """Why the homeserver refuses our keys; empty when it does not."""
        return self._keys.trouble

    async def sync(self, since: str | None, *, full_state: bool, wait_s: float) -> SyncBatch:
        """What happened since a token; keys and members are known to nio when it returns."""
        query: dict[str, Any] = {"filter": SYNC_FILTER}
        if since:
            query["since"] = since
        if full_state:
            query["full_state"] = "true"

        async def asked(wait_ms: int) -> Json:
            target = f"{path('sync')}?{urlencode({**query, 'timeout': wait_ms})}"
            # A long poll notices a silent network soon; a catch-up may take the homeserver its time.
            long_poll = wait_ms > SHORT_MS and not full_state
            return await call(
                self._nio, "GET", target, seconds=wait_ms / 1000 + 10 if long_poll else 60
            )

        batch = sift(await self._poll.round(asked, 0 if full_state else int(wait_s * 1000)))
        if batch is None:
            raise HomeserverUnavailable("the homeserver's sync has no token")
        response = SyncResponse.from_dict(batch.for_nio)
        if not isinstance(response, SyncResponse):
            raise HomeserverUnavailable("the homeserver's sync cannot be read")
        await self._nio.receive_response(response)
        self._keep_rooms(batch)
        self._poll.heard()
        self._keys.changed(batch.for_nio["device_lists"]["changed"])
        return replace(batch, malformed=batch.malformed + self._keys.take_dropped())

    def _keep_rooms(self, batch: SyncBatch) -> None:
        """Know who may be in which room; what was encrypted for other readers is used no more."""
        for room_id in batch.left:
            self._nio.rooms.pop(room_id, None)
            self._rules.pop(room_id, None)
            self._keys.end_session(room_id)
        changed = [room for room in batch.joined if self._tells_readers(batch, room)]
        for room in changed:
            rules = self._rules.get(room.room_id, Rules())
            self._rules[room.room_id] = Rules(
                rules.join_rule if room.join_rule is None else room.join_rule,
                rules.history if room.history is None else room.history,
            )
            before = self._views.get(room.room_id)
            if before and before.readers != self._seen(room.room_id).readers:
                self._keys.end_session(room.room_id)
        for room_id in (*batch.left, *(room.room_id for room in changed)):
            self._views.pop(room_id, None)

    def _tells_readers(self, batch: SyncBatch, room: RoomBatch) -> bool:
        """Whether a sync says anything new of who may be in a room: a large one is not read for less."""
        told = batch.for_nio["rooms"]["join"][room.room_id]["state"]["events"]
        return bool(told) or (room.join_rule, room.history) != (None, None)

    @property
    def round(self) -> int:
        """The number of the newest sync that has begun."""
        return self._poll.begun

    async def heard_since(self, number: int) -> None:
        """Wait until a sync has ended that began after that one; it is asked for at once."""
        await self._poll.heard_since(number)

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
        opened = self.opened(room_id, event)
        return opened.event if opened else None

    def opened(self, room_id: str, event: Json) -> Opened | None:
        """A room event in clear and whence it came; None while its key is missing or it is garbage."""
        if event["type"] != "m.room.encrypted":
            return Opened(event)
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
        if not isinstance(source, dict):
            return None
        device = self._origin(room_id, encrypted)
        if device is None:  # a new one; or who claims to be the sender has such keys
            self._nio.olm.users_for_key_query.add(encrypted["sender"])
        return Opened(source, device)

    def owner(self, room_id: str, event: Json) -> str:
        """Whose device encrypted an event; "" if that is not known."""
        encrypted = megolm(event)
        if encrypted is None or self._nio.olm is None:
            return ""
        device = self._origin(room_id, encrypted)
        return device.user_id if device else ""

    def _origin(self, room_id: str, event: Json) -> Device | None:
        """The device whose session encrypted an event; nio takes the sender's word (notes, end)."""
        olm, content, sender = self._nio.olm, event["content"], event["sender"]
        session = olm.inbound_group_store.get(room_id, content["sender_key"], content["session_id"])
        if session is None:
            return None
        keys = (content["sender_key"], session.ed25519)
        for user in (sender, *(set(olm.device_store.users) - {sender})):
            for device in olm.device_store[user].values():
                if (device.curve25519, device.ed25519) == keys:
                    return known(device)
        return None

    def verdict(self, opened: Opened, sender: str) -> Verdict:
        """What an encrypted event is worth as the word of its sender."""
        if opened.device is None or opened.device.user_id != sender:
            return "foreign"
        return self.people.verdict(opened.device)

    @property
    def rooms(self) -> tuple[str, ...]:
        """The rooms that we are in, as of the last sync."""
        return tuple(self._nio.rooms)

    def room(self, room_id: str) -> RoomView:
        """Who is in a room, who may come in and whether it is encrypted, as of the last sync."""
        if room_id not in self._views:
            self._views[room_id] = self._seen(room_id)
        return self._views[room_id]

    def room_for(self, scope: str, policy: Policy) -> str | None:
        """A room in which all who can read may read what is meant for a scope."""
        views = map(self.room, self.rooms)
        return next((v.room_id for v in views if may_read(v, scope, self.account, policy)), None)

    def _seen(self, room_id: str) -> RoomView:
        room = self._nio.rooms.get(room_id)
        if room is None:
            return RoomView(room_id, {}, frozenset(), encrypted=False)
        rules = self._rules.get(room_id, Rules())
        invited = frozenset(room.invited_users)
        members = {
            user.user_id: user.display_name or ""
            for user in room.users.values()
            if user.user_id not in invited
        }
        return RoomView(room_id, members, invited, room.encrypted, rules.join_rule, rules.history)

    def is_held(self, room_id: str) -> bool:
        """Whether somebody in a room has another identity now: nothing of ours goes there (X-035)."""
        view = self.room(room_id)
        changed = (person.user_id for person in self.people.changed())  # few, whatever the room
        return any(user in view.members or user in view.invited for user in changed)

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
        apart: bool = False,
        seen: RoomView | None = None,
    ) -> str:
        """Send an event once per `txn_id`; its id. Raises: AudienceChanged.

        `encrypted`: what the rest of the program knows of the room. It is never sent in clear if
        either we or nio believe it is encrypted. `apart`: in a session of its own, which people
        with a changed identity can read too. `seen`: the room as it was when it was judged who
        reads this; the keys go to just them, and nothing goes out once it is another.
        """
        room = self._nio.rooms.get(room_id)
        payload = content
        if room is not None and room.encrypted and self._nio.olm is not None:
            with translated():
                await self._keys.share(room_id, apart=apart)
                if seen is not None and self.room(room_id) != seen:
                    raise AudienceChanged(room_id)
                # (What it relates to stays readable beside it, as the homeserver needs it.)
                event_type, payload = self._nio.encrypt(room_id, event_type, content)
                if apart:
                    self._keys.end_session(room_id)
        elif encrypted or (room is not None and room.encrypted):
            raise SendRefused(
                "the room is encrypted and we cannot encrypt for it (see matrix.encryption)",
                "NOT_ENCRYPTED",
            )
        if seen is not None and self.room(room_id) != seen:
            raise AudienceChanged(room_id)
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
    matrix: Matrix, session: Session, folder: Path, new_id: NewId, clock: Clock, people: People
) -> AsyncIterator[MatrixClient]:
    """A client for a login, its key store open; closed at the end.

    `folder` holds nio's key store, a database file of its own that is never opened by our driver,
    and the seeds of our identity.
    """
    encryption = matrix.encryption != "off"
    config = AsyncClientConfig(
        encryption_enabled=encryption,
        pickle_key=session.pickle_key,
        store_sync_tokens=False,
        max_timeouts=0,
        max_limit_exceeded=0,
        request_timeout=30,
    )
    nio = AsyncClient(matrix.homeserver, session.user_id, session.device_id, str(folder), config)
    account = Account(session.user_id, session.device_id, display_name="")
    identity = CrossSigning(nio, folder, session.user_id, matrix.password, clock)
    refuse = matrix.unsigned_devices == "refuse"
    keys = Keys(nio, new_id, clock, people, identity, refuse_unsigned=refuse)
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
