"""A typed client for the homeserver on top of nio, including encryption.

nio keeps keys, members and the HTTP session. Our own code reads /sync, sends and retries: nio's
would hide waits of up to a minute, and would send unencrypted where it missed that a room is
encrypted.
"""

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from nio import AsyncClient, AsyncClientConfig, EncryptionError, RoomKeyEvent, SyncResponse
from nio.exceptions import (
    GroupEncryptionError,
    LocalProtocolError,
    OlmTrustError,
    ProtocolError,
)
from peewee import PeeweeException

from wintermute.clock import CheckedClock, Clock
from wintermute.config.schema import Matrix, proxied
from wintermute.db import Transaction
from wintermute.errors import (
    AudienceChanged,
    ConfigurationError,
    HomeserverUnavailable,
    LoginRefused,
    SendRefused,
)
from wintermute.ids import NewId
from wintermute.mailbox.rooms import Moves
from wintermute.matrix.cross_signing import CrossSigning, IdentityState
from wintermute.matrix.error_boundary import install
from wintermute.matrix.http import NO_ANSWER, RenewingClient, call, path
from wintermute.matrix.inbox import OUTBOX_KEY, Account, Policy, RoomView, may_read
from wintermute.matrix.instances import read_installation
from wintermute.matrix.kept_login import Session, store_file
from wintermute.matrix.key_rotation import inherit
from wintermute.matrix.key_store import (
    EPOCH,
    INSTALLATION_TYPE,
    PATIENCE,
    Epochs,
    blocked,
    newest_in,
    value_in,
)
from wintermute.matrix.keys import Keys, store_before_upload
from wintermute.matrix.login import NO_KEYS, renewed, store_problem
from wintermute.matrix.message_tags import MessageTags, load_message_tags
from wintermute.matrix.people import Device, People, TrustLevel, fingerprint
from wintermute.matrix.relations import edited_by
from wintermute.matrix.sessions import (
    DecryptedEvent,
    SessionCopiesStore,
    Sessions,
    record_message,
    stored_owner,
)
from wintermute.matrix.signing import ED25519
from wintermute.matrix.sync_response import (
    NO_OLM,
    GroupSession,
    SyncBatch,
    page,
    parse_sync,
    session_of,
)
from wintermute.messages import Json
from wintermute.text import display_name, no_answer

SHORT_MS = 100

NO_MARKS = str.maketrans("", "", "`@")
"""Characters removed from a device name: they would end its code span or mention somebody."""
log = logging.getLogger(__name__)
NOTHING = {"not_types": ["*"]}
SYNC_FILTER = {
    "presence": NOTHING,
    "room": {"timeline": {"limit": 100}, "ephemeral": NOTHING, "account_data": NOTHING},
}
TYPING_MS = 30_000
DEVICES_SECONDS = 10.0


class Poll:
    """A counter of syncs, so that a task can wait for one that began after an event (F-002)."""

    def __init__(self) -> None:
        # Synapse repeats its answer to an equal request for two minutes, even after a restart.
        # So every short wait has another length.
        self.begun = secrets.randbelow(SHORT_MS)
        """The number of the newest sync that has begun."""
        self._processed = -1
        self._is_requested = False
        self._timeout: asyncio.Timeout | None = None
        self._processed_event = asyncio.Event()

    async def round(self, asked: Callable[[int], Awaitable[Json]], wait_ms: int) -> Json:
        """Run one sync: call `asked` with the milliseconds to wait for events, and return its answer."""
        self.begun += 1
        if wait_ms > SHORT_MS and not self._is_requested:
            try:
                async with asyncio.timeout(None) as scope:
                    self._timeout = scope
                    return await asked(wait_ms)
            except TimeoutError:
                if not scope.expired():
                    raise
                self.begun += 1
            finally:
                self._timeout = None
        return await asked(self.begun % SHORT_MS)

    def processed(self) -> None:
        """Wake up the waiting tasks: the newest sync is processed."""
        self._processed, self._is_requested = self.begun, False
        processed, self._processed_event = self._processed_event, asyncio.Event()
        processed.set()

    async def wait_processed_since(self, number: int) -> None:
        """Wait until a sync that began after number `number` is processed; one is started at once."""
        while self._processed <= number:
            if self._timeout is not None and not self._is_requested:
                self._timeout.reschedule(asyncio.get_running_loop().time())
            self._is_requested = True
            await self._processed_event.wait()


class MatrixClient:
    """The homeserver for all other modules of this folder."""

    def __init__(
        self,
        nio: AsyncClient,
        account: Account,
        keys: Keys,
        marks: MessageTags,
        dates: CheckedClock | None = None,
    ) -> None:
        self._nio = nio
        self._dates = dates
        self._rules: dict[str, dict[str, str]] = {}  # join rule and history of each room
        self._views: dict[str, RoomView] = {}
        self._since: str | None = None
        self._owners: dict[GroupSession, Device] = {}
        self.account = account
        self.keys = keys
        self.tags = marks
        self.moves = Moves()
        """The rooms that replace others; see `follow`."""
        self.poll = Poll()
        self.sessions = Sessions(nio)
        self.epochs = Epochs(nio, keys.store)
        self.people = keys.people

    def to_our_clock(self, sent_at: datetime) -> datetime:
        """Convert a time of the homeserver's clock to ours."""
        return sent_at if self._dates is None else self._dates.on_our_clock(sent_at)

    @property
    def identity(self) -> IdentityState:
        """The state of our cross-signing identity."""
        if self._nio.olm is None:
            return IdentityState("ok", "none: matrix.encryption is off")
        return self.keys.identity.state

    @property
    def keeps_identity(self) -> bool:
        """True if our device is or will be signed by the identity of earlier runs."""
        return self._nio.olm is not None and self.keys.identity.keeps_identity

    @property
    def secrets(self) -> tuple[str, ...]:
        """The seeds of our identity, also before it is created, and the key of our message tags."""
        return (*self.keys.identity.secrets, self.tags.secret)

    @property
    def device_key(self) -> str:
        """The public key of our device; "" without encryption."""
        return str(self._nio.olm.account.identity_keys["ed25519"]) if self._nio.olm else ""

    @property
    def device_line(self) -> str:
        """Our device id and fingerprint, as people compare them."""
        key = f", fingerprint {fingerprint(self.device_key)}" if self.device_key else ""
        return f"{self.account.device_id}{key}"

    async def sign_all_devices(self) -> None:
        """Sign every device of our account; only a command does this, never the daemon."""
        with translated():
            await self.keys.identity.sign_all_devices()

    async def fresh_keys(self, user: str) -> dict[str, str]:
        """Query the public keys of a user's devices and identity, by key id."""
        await self.keys.ask({user})
        devices = self._nio.olm.device_store.active_user_devices(user)
        found = {f"{ED25519}{device.id}": str(device.ed25519) for device in devices}
        master = self.people.master_key(user)
        return found | ({f"{ED25519}{master}": master} if master else {})

    def device_name(self, user: str, device: str) -> str:
        """Return a device's name in a code span and a blank; "" if it is unknown."""
        known = self._nio.olm.device_store[user].get(device)
        name = display_name(known.display_name.translate(NO_MARKS)) if known else ""
        return f"`{name}` " if name else ""

    async def send_to_device(
        self, kind: str, user: str, device: str, content: Json, txn_id: str
    ) -> None:
        """Send an unencrypted to-device message to one device of a user, or to all with `*`; once per `txn_id`."""
        body = {"messages": {user: {device: content}}}
        await call(self._nio, "PUT", path("sendToDevice", kind, txn_id), body)

    def refused_device(self, room_id: str, event: Json) -> Device | None:
        """Return the device that sent an encrypted event, if its new keys are refused."""
        session_id, named = session_of(event)
        sent = {named, *self.sessions.copies(room_id, session_id)}
        refused = self.keys.replaced.refused_of(event["sender"])
        return next((each for each in refused if not named or each.curve25519 in sent), None)

    async def sync(self, since: str | None, *, full_state: bool, wait_s: float) -> SyncBatch:
        """Fetch all events since a token. When it returns, nio knows the new keys and members."""
        return await self.take_keys(
            await self.fetch_sync(since, full_state=full_state, wait_s=wait_s)
        )

    async def fetch_sync(self, since: str | None, *, full_state: bool, wait_s: float) -> SyncBatch:
        """Fetch all events since a token. When it returns, the members of the rooms are known.

        The new keys are not: they have to be stored, which may be impossible for a long time.
        """
        epoch = EPOCH + self.account.device_id
        wanted = SYNC_FILTER | {"account_data": {"types": [epoch, INSTALLATION_TYPE]}}
        query: dict[str, Any] = {"filter": json.dumps(wanted, separators=(",", ":"))}
        if since:
            query["since"] = since
        if full_state:
            query["full_state"] = "true"

        async def asked(wait_ms: int) -> Json:
            target = f"{path('sync')}?{urlencode({**query, 'timeout': wait_ms})}"
            # A long poll detects a dead connection soon; a catch-up may be slow.
            long_poll = wait_ms > SHORT_MS and not full_state
            return await call(
                self._nio, "GET", target, seconds=wait_ms / 1000 + 10 if long_poll else 60
            )

        raw = await self.poll.round(asked, 0 if full_state else int(wait_s * 1000))
        batch = parse_sync(raw)
        if batch is None:
            raise HomeserverUnavailable("the homeserver's sync has no token")
        if not since:
            self._forget_rooms()
        self._read_members(batch)
        self.poll.processed()
        if since != self._since:  # everything before is stored
            self._since, self._owners = since, {}
        at_work = read_installation(newest_in(raw, INSTALLATION_TYPE))
        return replace(batch, epoch=value_in(newest_in(raw, epoch)), installation=at_work)

    def _forget_rooms(self) -> None:
        """Forget the known rooms and keys: a sync without a token does not name rooms that we left."""
        for room_id in list(self._nio.rooms):
            self.keys.end_session(room_id)
        for known in (self._nio.rooms, self._rules, self._views):
            known.clear()
        self.keys.assume_devices_changed()

    def _read_members(self, batch: SyncBatch) -> None:
        """Let nio read the members before the keys; it would read them later, or never."""
        encrypted: set[str] = set()
        response = parsed({**batch.for_nio, "to_device": {}})
        for room_id, news in response.rooms.join.items():
            self._nio._handle_joined_state(room_id, news, encrypted)
            room = self._nio.rooms[room_id]
            if room.encrypted and self._nio.olm is not None:
                self._nio.olm.update_tracked_users(room)
        self._nio.encrypted_rooms.update(encrypted)
        if self._nio.olm is not None:
            self._nio._handle_olm_events(response)  # whose devices changed
        self._update_readers(batch)

    async def take_keys(self, batch: SyncBatch) -> SyncBatch:
        """Let nio process the keys of a sync; return it with the owners of new sessions.

        Raises: KeyStoreBlocked.
        """
        response = parsed({**batch.for_nio, "rooms": {}, "device_lists": {}})
        with self.keys.store.writing():
            rooms = {room.room_id for room in batch.joined if room.encryption}
            if self._nio.olm is not None and rooms:
                # The first sync names all encrypted rooms; only new ones have to be written.
                new = rooms - self._nio.store.load_encrypted_rooms()
                self._nio.store.save_encrypted_rooms(sorted(new))
            await self._nio.receive_response(response)  # does not wait: there are no callbacks
        self.keys.store_counts(batch.keys_left)
        self.keys.changed(batch.for_nio["device_lists"]["changed"])
        for claim in batch.withheld:
            if claim.code == NO_OLM:
                self.keys.begin_session(claim.sender, claim.sender_key)
        keys = [each for each in response.to_device_events if isinstance(each, RoomKeyEvent)]
        # The first owner stays until it is stored: nio accepts each key only once.
        self._owners = {**await self._owners_of(keys), **self._owners}
        malformed = batch.malformed + self.keys.take_dropped()
        return replace(batch, malformed=malformed, owners=tuple(self._owners.items()))

    async def _owners_of(self, keys: Sequence[RoomKeyEvent]) -> dict[GroupSession, Device]:
        """Return the owners of the sessions in these keys; unknown devices are queried first.

        Only those of allowed users: others could delay us with keys without end. A device that is
        still unknown is looked up when an event of its session comes.
        """
        found = self.sessions.owned(keys)
        unknown = {sender for sender, _, device in found if device is None} & self.people.allowed
        if unknown:
            try:
                async with asyncio.timeout(DEVICES_SECONDS):
                    await self.keys.ask(unknown)
            except (HomeserverUnavailable, SendRefused, TimeoutError) as error:
                log.warning("devices not known yet users=%s reason=%s", len(unknown), error)
                self._nio.olm.users_for_key_query |= unknown
            found = self.sessions.owned(keys)
        allowed = self.people.allowed
        return {session: owner for _, session, owner in found if owner and owner.user_id in allowed}

    def _update_readers(self, batch: SyncBatch) -> None:
        """Update the rooms' readers; if they change, the room's session is not used any more."""
        for room_id in batch.left:
            self._nio.rooms.pop(room_id, None)
            self._rules.pop(room_id, None)
            self.keys.end_session(room_id)
        changed = [room for room in batch.joined if batch.may_change_readers(room)]
        for room in changed:
            said = {"join_rule": room.join_rule, "history": room.history}
            news = {name: rule for name, rule in said.items() if rule is not None}
            self._rules[room.room_id] = self._rules.get(room.room_id, {}) | news
            before = self._views.get(room.room_id)
            if before and before.readers != self._view(room.room_id).readers:
                self.keys.end_session(room.room_id)
        for room_id in (*batch.left, *(room.room_id for room in changed)):
            self._views.pop(room_id, None)

    async def page(
        self, room_id: str, start: str | None, end: str | None = None, limit: int = 100
    ) -> tuple[list[Json], str | None]:
        """Fetch the events before the token `start`, oldest first, and the token of the page before."""
        query: Json = {"dir": "b", "limit": limit}
        query |= {name: at for name, at in (("from", start), ("to", end)) if at}
        target = f"{path('rooms', room_id, 'messages')}?{urlencode(query)}"
        return page(await call(self._nio, "GET", target))

    async def newest(self, room_id: str) -> AsyncIterator[Json]:
        """Iterate over the events of a room, newest first, decrypted where possible."""
        events, start = await self.page(room_id, None, limit=50)
        while events:
            for event in reversed(events):
                yield self.decrypt(room_id, event) or event
            if start is None:
                return
            events, start = await self.page(room_id, start, limit=50)

    async def edits(self, room_id: str, event_id: str) -> AsyncIterator[str]:
        """Iterate over our existing edits of an event, oldest first.

        The homeserver does not list edits of a redacted event, but still shows them in the room.
        """
        around = await call(self._nio, "GET", path("rooms", room_id, "context", event_id))
        found, start = page({"chunk": around.get("events_after"), "end": around.get("end")})
        rest = {"dir": "f", "limit": 100}
        rest["filter"] = json.dumps({"senders": [self.account.user_id]})
        while True:
            for event in reversed(found):
                if edited_by(event) == event_id and event["sender"] == self.account.user_id:
                    yield str(event["event_id"])
            if start is None:
                return
            query = urlencode({"from": start} | rest)
            answer = await call(self._nio, "GET", f"{path('rooms', room_id, 'messages')}?{query}")
            found, start = page(answer)

    async def event(self, room_id: str, event_id: str) -> Json:
        """Fetch one event of a room, undecrypted."""
        return await call(self._nio, "GET", path("rooms", room_id, "event", event_id))

    def decrypt(self, room_id: str, event: Json) -> Json | None:
        """Decrypt a room event; None if its key is missing or it is malformed."""
        opened = self.sessions.decrypt(room_id, event)
        return opened.event if opened else None

    async def decrypt_checked(
        self, tx: Transaction, room_id: str, event: Json
    ) -> tuple[DecryptedEvent | None, TrustLevel]:
        """Decrypt an event and return it with its trust level.

        An event of its sender is recorded, so that no other event can replay its ciphertext. For
        users who are not allowed nothing is stored: they may begin a session with each line.
        """
        ways, sender = self.sessions.decrypt_or_request_key(room_id, event), event["sender"]
        best, allowed = next(iter(ways), None), sender in self.people.allowed
        verdict: TrustLevel = "foreign"
        for opened in ways:
            device = opened.position and await stored_owner(
                tx, opened.position, opened.device, keep=allowed
            )
            # A forged device of the sender may have sent the same session.
            if device and device.user_id == sender and verdict != "good":
                best, verdict = replace(opened, device=device), self.people.trust_level(device)
        if best is None or best.position is None or verdict == "foreign" or not allowed:
            return best, verdict
        taken = await record_message(tx, best.position, str(event["event_id"]))
        return best, verdict if taken else "replayed"

    @property
    def rooms(self) -> tuple[str, ...]:
        """The rooms that we are in, as of the last sync."""
        return tuple(self._nio.rooms)

    def room(self, room_id: str) -> RoomView:
        """Return the members, rules and encryption of a room, as of the last sync."""
        if room_id not in self._views:
            self._views[room_id] = self._view(room_id)
        return self._views[room_id]

    def follow(self, moves: Moves) -> None:
        """Use these replaced rooms from now on."""
        if moves != self.moves:
            self.moves = moves
            self._views = {}

    def room_for(
        self, scope: str, policy: Policy, encrypted: bool = False, first: Collection[str] = ()
    ) -> str | None:
        """Find a room in which every reader may read messages of a scope; an encrypted one if required.

        `first`: rooms to try before the others.
        """
        over = self.moves.closed | self.moves.unencrypted
        ordered = dict.fromkeys((*(r for r in first if r in self.rooms), *self.rooms))
        rooms = (self.room(room_id) for room_id in ordered if room_id not in over)
        views = (view for view in rooms if view.encrypted or not encrypted)
        return next((v.room_id for v in views if may_read(v, scope, self.account, policy)), None)

    def _view(self, room_id: str) -> RoomView:
        room = self._nio.rooms.get(room_id)
        named = self.moves.scopes.get(room_id, "")
        if room is None:
            return RoomView(room_id, {}, frozenset(), encrypted=False, named=named)
        invited = frozenset(room.invited_users)
        members = {
            user.user_id: user.display_name or ""
            for user in room.users.values()
            if user.user_id not in invited
        }
        rules = self._rules.get(room_id, {})
        return RoomView(room_id, members, invited, room.encrypted, named=named, **rules)

    def is_held(self, room_id: str) -> bool:
        """Check if a member of a room has a changed identity: then nothing is sent there (X-035)."""
        view = self.room(room_id)
        changed = (person.user_id for person in self.people.changed())  # few, even in a large room
        return any(user in view.members or user in view.invited for user in changed)

    def rotate_keys(self) -> None:
        """Replace all sessions before the next message: our keys come from a backup."""
        if self._nio.olm is not None:
            self.keys.rotation.begin()

    async def upkeep(self) -> None:
        """Do the work for encryption that is due after each sync: upload, query and claim keys."""
        with translated():
            await self.keys.upkeep()

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
        """Send an event once per `txn_id`; return its id. Raises: AudienceChanged.

        `encrypted`: True if our database knows the room as encrypted. The event is never sent
        unencrypted if our database or nio believes that the room is encrypted. The exception are
        reactions: an encrypted one would notify people like a message. `apart`: use a new session,
        which people with a changed identity can read, too. `seen`: the room when its readers were
        checked; the keys go to exactly these, and nothing is sent if it has changed.
        """
        room = self._nio.rooms.get(room_id)
        payload, in_clear = content, event_type == "m.reaction"
        if room is not None and room.encrypted and self._nio.olm is not None and not in_clear:
            with translated():
                await self.keys.share(room_id, apart=apart)
                if seen is not None and self.room(room_id) != seen:
                    raise AudienceChanged(room_id)
                # (Its relation stays unencrypted, as the homeserver needs it.)
                with self.keys.store.writing():
                    event_type, payload = self._nio.encrypt(room_id, event_type, content)
                if apart:
                    self.keys.end_session(room_id)
            payload |= {key: content[key] for key in (OUTBOX_KEY,) if key in content}
        elif not in_clear and (encrypted or (room is not None and room.encrypted)):
            raise SendRefused(
                "the room is encrypted and we cannot encrypt for it (see matrix.encryption)",
                "NOT_ENCRYPTED",
            )

        def judge() -> None:
            if seen is not None and self.room(room_id) != seen:
                raise AudienceChanged(room_id)

        judge()
        target = path("rooms", room_id, "send", event_type, txn_id)
        answer = await call(self._nio, "PUT", target, payload, judge=judge)
        event_id = answer.get("event_id")
        if not isinstance(event_id, str) or not event_id:
            raise HomeserverUnavailable("the homeserver named no event")
        return event_id

    async def redact(self, room_id: str, event_id: str, txn_id: str) -> str:
        """Redact an event of ours without a reason; return the id of the redaction."""
        target = path("rooms", room_id, "redact", event_id, txn_id)
        answer = await call(self._nio, "PUT", target, {})
        return str(answer.get("event_id", ""))

    async def join(self, room_id: str) -> None:
        """Join a room."""
        await call(self._nio, "POST", path("rooms", room_id, "join"), {})

    async def leave(self, room_id: str) -> None:
        """Leave a room, or decline its invitation."""
        await call(self._nio, "POST", path("rooms", room_id, "leave"), {})

    async def typing(self, room_id: str, *, on: bool) -> None:
        """Show or hide our typing notification."""
        body: Json = {"typing": on} | ({"timeout": TYPING_MS} if on else {})
        await call(self._nio, "PUT", path("rooms", room_id, "typing", self.account.user_id), body)

    async def read(self, room_id: str, event_id: str) -> None:
        """Mark a room as read up to an event."""
        await call(self._nio, "POST", path("rooms", room_id, "receipt", "m.read", event_id), {})


@contextlib.asynccontextmanager
async def open_client(
    matrix: Matrix,
    session: Session,
    folder: Path,
    new_id: NewId,
    clock: Clock,
    people: People,
    dates: CheckedClock | None = None,
    hide: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[MatrixClient]:
    """Open a client for a login, with its key store; it is closed at the end.

    `folder` holds nio's key store (an SQLite file that our own driver never opens), the seeds of
    our identity and the key of our message tags. `dates` gets the dates of the homeserver's
    answers, `hide` each new token of the login.
    """

    async def renew(why: LoginRefused) -> str:
        keys = identity.device()["keys"] if encryption else None
        token = (await renewed(matrix, folder, session, why, keys)).access_token
        hide(token)
        return token

    encryption = matrix.encryption != "off"
    config = AsyncClientConfig(
        encryption_enabled=encryption,
        store=SessionCopiesStore,
        pickle_key=session.pickle_key,
        store_sync_tokens=False,
        max_timeouts=0,
        max_limit_exceeded=0,
        request_timeout=30,
    )
    login = (matrix.homeserver, session.user_id, session.device_id, str(folder), config)
    nio = RenewingClient(*login, None, proxied(matrix), renew=renew, dates=dates)
    account = Account(session.user_id, session.device_id, display_name="")
    marks = await asyncio.to_thread(load_message_tags, folder, session.user_id)
    identity = CrossSigning(nio, folder, session.user_id, matrix.password, clock)
    refuse = matrix.unsigned_devices == "refuse"
    keys = Keys(nio, new_id, clock, people, identity, refuse_unsigned=refuse)
    try:
        if encryption:
            await asyncio.to_thread(_restore, nio, session, store_file(folder, session))
            nio.store.database.timeout = PATIENCE
            install(nio, keys.drop, clock)
            store_before_upload(nio.olm)
        else:
            nio.access_token = session.access_token
        yield MatrixClient(nio, account, keys, marks, dates)
    finally:
        await nio.close()
        if nio.store is not None:
            nio.store.database.close()


def parsed(sync: Json) -> SyncResponse:
    """Return a sync in nio's form."""
    response = SyncResponse.from_dict(sync)
    if not isinstance(response, SyncResponse):
        raise HomeserverUnavailable("the homeserver's sync cannot be read")
    return response


def _restore(nio: AsyncClient, session: Session, file: Path) -> None:
    """Open the key store, or create a new one.

    Raises: ConfigurationError; KeyStoreBlocked.
    """
    found = store_problem(file, mode="rw") if file.exists() else None
    problem: str | Exception | None = None if found == NO_KEYS else found
    if problem is None:
        try:
            nio.restore_login(session.user_id, session.device_id, session.access_token)
            inherit(nio, session)
            nio.store.database.close()  # only this thread's connection
        except (PeeweeException, ValueError) as error:
            problem = error
    if problem is not None:
        if blocked_error := blocked(file, problem):
            raise blocked_error
        kind = "" if isinstance(problem, str) else f"{type(problem).__name__}: "
        raise ConfigurationError(
            f"the encryption keys in {file} cannot be read ({kind}{problem}): restore the Matrix folder "
            "from a backup, or run `wintermute matrix reset-crypto`, which moves them aside for a "
            "new device"
        )


@contextlib.contextmanager
def translated() -> Any:
    """Raise nio's own errors as ours."""
    try:
        yield
    except NO_ANSWER as error:
        raise HomeserverUnavailable(no_answer("the homeserver", error)) from error
    except (
        EncryptionError,
        GroupEncryptionError,
        LocalProtocolError,
        OlmTrustError,
        ProtocolError,
    ) as error:
        raise HomeserverUnavailable(f"encryption: {error}") from error
