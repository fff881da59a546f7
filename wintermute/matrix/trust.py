"""Decisions about messages by their trust level: answer, answer as somebody else's, hold, or refuse.

Also the notices about them, each sent once, the stored identities of people (X-034, X-035), and
the notice that a chat is no direct chat (F-014).
"""

import asyncio
import logging
import re
from datetime import timedelta
from typing import Literal

from wintermute.db import Transaction
from wintermute.mailbox.notices import EVER
from wintermute.mailbox.outbox import ANYBODY
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.cross_signing import IdentityState
from wintermute.matrix.inbox import RULES, Policy, RoomView, is_direct, scope_of
from wintermute.matrix.people import NOBODY, Device, PeopleStore, Person, TrustLevel, fingerprint
from wintermute.stores import Stores

log = logging.getLogger(__name__)

Acceptance = Literal["good", "other", "held", "refused"]

UNSIGNED = (
    "I do not answer messages from {person}'s session {name}`{device}`, because {person} has not"
    " verified it. To change that, open the client of that session and verify it with another session or "
    "with the recovery key. Then I answer what it said here."
)
REPLAYED = (
    "A message of {sender} came a second time as if it were new. I ignore it: somebody at"
    " the homeserver may be repeating old messages."
)
UNSIGNED_IN_CLEAR = (
    "I do not answer {person}'s messages here that are not encrypted: anybody at the homeserver "
    "could have written them. Please send them again from a session that is verified."
)
CHANGED = (
    "{person} has a new cryptographic identity, so I cannot tell whether it is still the same"
    " person. Until somebody confirms it, I do not answer {person} and send nothing to rooms"
    " that they are in. If they reset their encryption, run `wintermute matrix trust {user}` on"
    " the machine "
    "that I run on. The new identity is `{key}`."
)
GONE = (
    "{person} no longer has the cryptographic identity that I know, so I cannot tell whether it"
    " is still the same person. Until somebody confirms it, I do not answer {person} and send"
    " nothing to rooms that they are in. If they removed it, run `wintermute matrix trust"
    " {user}` on the machine "
    "that I run on."
)

REPLACED = (
    "I cannot talk with {person}'s session {name}`{device}`: its keys have changed, for example"
    " because its client lost its data. {person}'s identity has not signed the new ones. Please"
    " log that session out, and log in again."
)
IDENTITY = (
    "My cryptographic identity has a problem: {trouble}. We can go on talking, but clients"
    " may show red shields at my messages, or hide them."
)
DAY = timedelta(days=1)
IDENTITY_KEY = "identity "
"""Beginning of the keys of notices about our own identity."""

PLAIN_NAME = re.compile(r"[\w.~+/=@:-]{1,255}", re.ASCII)
READERS = frozenset({"m.room.member", *RULES})
"""Events that change the readers of a room."""
NOT_PRIVATE = (
    "{why}, so this is not a direct chat: I do not use your private memories here{mention}. "
    "Once {end}, I continue our direct chat."
)
ONLY_MENTIONED = ", and I answer only messages that mention me or reply to me"
MOST_NAMES = 3


def harmless_id(name: str, otherwise: str) -> str:
    """Return an id for a notice if it is harmless: whoever creates a device chooses its id."""
    return name if PLAIN_NAME.fullmatch(name) else otherwise


def acceptance(verdict: TrustLevel, *, encrypted: bool, accept: bool) -> Acceptance:
    """Decide what to do with a message; "held": decide again when more is known.

    An unencrypted message has no device that could be signed later, so it is refused.
    """
    if verdict == "good":
        return "good"
    if verdict != "unsigned":
        return "held"
    if accept:
        return "other"
    return "held" if encrypted else "refused"


def replaced_notice(device: Device, called: str, room_id: str) -> tuple[str, str]:
    """Return key and text of the notice about a device whose new keys are refused."""
    key = f"replaced {device.user_id} {device.device_id} {device.curve25519} {room_id}"
    name = harmless_id(device.device_id, "?")
    return key, REPLACED.format(person=device.user_id, name=called, device=name)


class Trust:
    """Stores people's identities, and notifies people about problems with them."""

    def __init__(
        self, stores: Stores, client: MatrixClient, store: PeopleStore, policy: Policy
    ) -> None:
        self._stores = stores
        self._client = client
        self._store = store
        self._policy = policy
        self._version = -1
        self._lock = asyncio.Lock()
        self._unreached: set[Device] = set()
        self._owner_notified = self._in_order = ""

    async def settle(self) -> bool:
        """Store the results of key queries. Returns True if held messages are to be checked again."""
        async with self._lock:
            news = self._client.people.take_changes()
            if any(learned.people or learned.signed for learned in news):
                async with self._stores.database.transaction() as tx:
                    for learned in news:
                        await self._store.keep(tx, learned)
            for person in self._client.people.changed():
                if person.notified != person.changed_to:
                    await self._notify_changed(person)
            refused, reaches = self._client.keys.replaced, self._client.keys.reaches
            again = {device for device in self._unreached if reaches(device.user_id)}
            self._unreached -= again
            for device in (*refused.take_refused(), *again):
                if device in refused.refused_of(device.user_id):
                    await self._notify_refused(device)
            return bool(news)

    async def notify_person(
        self,
        tx: Transaction,
        view: RoomView,
        user: str,
        conversation: str,
        key: str,
        every: timedelta,
        notice: str,
    ) -> bool:
        """Notify a room that a device of a user is not answered; return True if the notice is new.

        If the user has no device that can decrypt it, it does not count as sent; their client
        shows the reason for the missing key. Then the notice goes to a direct chat that they can
        read, or else to the owner (F-069).
        """
        if self._can_open(user, view):
            return await self._stores.notices.notice_once(tx, key, every, conversation, notice)
        unopened = (f"{key} unopened", every, conversation, notice)
        news = await self._stores.notices.notice_once(tx, *unopened)
        owner = self._policy.owner.user_id
        for reader, named in ((user, key), (owner, f"{key} owner")):
            for other in await self._rooms_with(tx, reader):
                if self._is_direct(other) and self._can_open(reader, other):
                    there = await self._conversation(tx, other)
                    return await self._stores.notices.notice_once(tx, named, every, there, notice)
        return news

    def _can_open(self, user: str, view: RoomView) -> bool:
        return not view.encrypted or self._client.keys.reaches(user)

    async def reread(self) -> bool:
        """Check if a command on this machine has trusted an identity since the last call."""
        async with self._lock:
            version = await self._stores.database.version()
            if version == self._version:
                return False
            kept = await self._store.people()
            if self._client.people.has_changes:  # newer than the rows
                return False
            self._version = version
            trusted = self._client.people.restore(kept, ())
        if trusted:
            self._client.keys.changed(self._client.keys.replaced.users)
            log.info("identity trusted by somebody at this machine")
        return trusted

    async def notify_owner(self, identity: IdentityState) -> None:
        """Notify the owner's direct chat of a problem with our identity and its solution (X-051).

        Once a day for each kind of problem, as the homeserver's text may vary.
        """
        self._in_order = ""
        if self._owner_notified == identity.kind:
            return
        async with self._stores.database.transaction() as tx:
            views = await self._rooms_with(tx, self._policy.owner.user_id)
            if not views or not self._is_direct(views[0]):
                return
            conversation = await self._conversation(tx, views[0])
            notice = IDENTITY.format(trouble=identity.text)
            key = f"{IDENTITY_KEY}{identity.kind}"
            await self._stores.notices.notice_once(tx, key, DAY, conversation, notice)
        self._owner_notified = identity.kind

    async def in_order(self, master_key: str) -> None:
        """Note that our identity is this one and works: a later problem gets a new notice."""
        if self._in_order == master_key:
            return
        async with self._stores.database.transaction() as tx:
            await self._stores.notices.notice_again(tx, IDENTITY_KEY)
            await self._store.forget_other_verifications(tx, master_key)
        self._in_order, self._owner_notified = master_key, ""

    async def _notify_changed(self, person: Person) -> None:
        """Notify a person of their changed identity: in a direct chat if possible, else in a room of theirs.

        The owner is notified, too, and can solve it.
        """
        async with self._stores.database.transaction() as tx:
            views = await self._rooms_with(tx, person.user_id)
            if not views:
                return
            user, key = person.user_id, person.changed_to or NOBODY
            text = CHANGED if key else GONE
            notice = text.format(person=user, user=user, key=fingerprint(key))
            await self._enqueue(tx, views[0], notice, apart=True)
            owner = self._policy.owner.user_id
            owners = [v for v in await self._rooms_with(tx, owner) if self._is_direct(v)]
            if owners and owner != person.user_id:
                await self._enqueue(tx, owners[0], notice)
            await self._store.store_notified(tx, person)
        self._client.people.note_notified(person)
        log.warning("identity changed user=%s", person.user_id)

    async def _enqueue(
        self, tx: Transaction, view: RoomView, text: str, *, apart: bool = False
    ) -> None:
        conversation = await self._conversation(tx, view)
        await self._stores.outbox.enqueue(
            tx, conversation, text, kind="notice", meant_for=ANYBODY, apart=apart
        )

    async def _notify_refused(self, device: Device) -> None:
        """Notify a person once of refused keys; people who write get the notice where they write."""
        log.warning("new keys refused user=%s device=%s", device.user_id, device.device_id)
        if device.user_id not in self._policy.allowed:
            return
        if not self._client.keys.reaches(device.user_id):
            self._unreached.add(device)
        async with self._stores.database.transaction() as tx:
            for view in (await self._rooms_with(tx, device.user_id))[:1]:
                conversation = await self._conversation(tx, view)
                called = self._client.device_name(device.user_id, device.device_id)
                key, notice = replaced_notice(device, called, view.room_id)
                await self.notify_person(tx, view, device.user_id, conversation, key, EVER, notice)

    async def _rooms_with(self, tx: Transaction, user_id: str) -> list[RoomView]:
        """Return our rooms that a user is in or invited to, direct chats first."""
        gone = await self._stores.known.inactive(tx)
        views = [self._client.room(room_id) for room_id in self._client.rooms]
        theirs = [
            view
            for view in views
            if user_id in (*view.members, *view.invited) and view.room_id not in gone
        ]
        return sorted(theirs, key=lambda view: (not self._is_direct(view), not view.encrypted))

    def _is_direct(self, view: RoomView) -> bool:
        return is_direct(view, self._client.account, self._policy)

    async def _conversation(self, tx: Transaction, view: RoomView) -> str:
        scope = scope_of(view, self._client.account, self._policy)
        return await self._stores.conversations.in_room(tx, view.room_id, scope)


def not_private(room: RoomView, us: str, person: str, policy: Policy, *, was: bool) -> str:
    """Return the notice for a person in a room that they may take for a direct chat; "" for none.

    `was`: it was a direct chat before.
    """
    why, end = _reason(room, us, person)
    alone = room.members.keys() == {us, person} and not room.invited
    if person not in policy.allowed or not why or not (was or alone):
        return ""
    mention = ONLY_MENTIONED if policy.mention_in_groups else ""
    return NOT_PRIVATE.format(why=why, mention=mention, end=end)


def _reason(room: RoomView, us: str, person: str) -> tuple[str, str]:
    """Return why a room is no direct chat, and what would change that; "" if it is one."""
    others = sorted(room.readers - {us, person})
    names = ", ".join(f"`{harmless_id(user, 'somebody')}`" for user in others[:MOST_NAMES])
    if len(others) > MOST_NAMES:
        names += " and others"
    if others and room.invited.issuperset(others):
        have = "has" if len(others) == 1 else "have"
        return f"{names} {have} been invited", "the invitation is declined or taken back"
    if others:
        return f"{names} can read what is said here", "we are alone here"
    if room.history == "world_readable":
        end = "its settings say that only members can read its history"
        return "Anybody may read what is said in this room", end
    if room.is_open:
        end = "its settings say that people join by invitation only"
        return "Anybody may join this room", end
    return "", ""
