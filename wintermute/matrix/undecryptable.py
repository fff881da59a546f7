"""Notices about undecryptable messages: the reason, as far as it is known, and what to do."""

import logging
from dataclasses import dataclass
from datetime import timedelta

from wintermute.clock import Clock, stamp
from wintermute.db import Database, Transaction
from wintermute.db.values import columns, insert
from wintermute.mailbox.inbox import LockedEvent
from wintermute.mailbox.notices import EVER
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.inbox import Policy
from wintermute.matrix.sync_response import NO_OLM, WithheldClaim, session_of
from wintermute.matrix.trust import Trust, harmless_id, replaced_notice
from wintermute.stores import Stores

KEPT = timedelta(days=1)  # after this there are no notices about a message
MOST = 200  # of one sender
log = logging.getLogger(__name__)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
KEYS_GRACE = timedelta(seconds=30)  # a key may come a sync later than its message
LOCKED = (
    "I could not decrypt a message of {sender}. Sending it again usually helps. If its key still "
    "arrives, I read the old one too."
)
BRIDGED = (
    "I do not accept a message of {sender}, because its key came from a device of {owner}. If that"
    " is a bridge: I can only read people who use a Matrix client of their own."
)
NO_BRIDGE = "they write with a Matrix client of their own; see docs/encryption.md"
WITHHELD = {
    "m.unverified": (
        "I cannot read a message of {sender}: that client gives its keys only to sessions that its "
        "owner has verified. Please verify me from my profile, or turn that setting off, and send "
        "the message again."
    ),
    "m.blacklisted": (
        "I cannot read a message of {sender}: that client has blocked my session. Please unblock "
        "it, and send the message again."
    ),
    "m.unauthorised": (
        "I cannot read a message of {sender}: that client says it was not for me, perhaps"
        " because I joined later. If it was for me, please send it again."
    ),
    "m.unavailable": (
        "I cannot read a message of {sender}: that client no longer has its key. Please send it "
        "again."
    ),
    NO_OLM: (
        "I cannot read a message of {sender}: that client could not begin an encrypted session with "
        "me. I begin one now; please send the message again."
    ),
}
"""Notices for the reasons that clients give for withholding a key; their own texts are not shown."""


class WithheldKeys:
    """The store of claims about withheld keys. Only the reason is stored."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def keep(self, tx: Transaction, claim: WithheldClaim) -> None:
        """Store a claim; of each sender only the newest `MOST` are kept."""
        now = self._clock.now()
        values = columns(claim) | {"received_at": now}
        newest = "code = excluded.code, received_at = excluded.received_at"
        await tx.execute(*insert("withheld_keys", values, f"ON CONFLICT DO UPDATE SET {newest}"))
        await tx.execute("DELETE FROM withheld_keys WHERE received_at < ?", (stamp(now - KEPT),))
        await tx.execute(
            "DELETE FROM withheld_keys WHERE sender = :sender AND received_at < (SELECT received_at"
            " FROM withheld_keys WHERE sender = :sender ORDER BY received_at DESC LIMIT 1 OFFSET :most)",
            {"sender": claim.sender, "most": MOST - 1},
        )

    async def code(self, sender: str, room_id: str, session_id: str, sender_key: str) -> str:
        """Look up the code for a session's missing key; "" if its sender gave none.

        The sender key that an event names is compared only for `m.no_olm`; an event without one
        matches any device.
        """
        row = await self._database.row(
            "SELECT code FROM withheld_keys WHERE sender = :sender AND (room_id = :room AND"
            " session_id = :session OR room_id = '' AND :key IN (sender_key, ''))"
            " ORDER BY room_id DESC, received_at DESC LIMIT 1",
            {"sender": sender, "room": room_id, "session": session_id, "key": sender_key},
        )
        return str(row["code"]) if row else ""


@dataclass(frozen=True, slots=True)
class LockReason:
    """The reason why a message stays locked, and its notice, sent once per `key` and `every`.

    `owner`: the user whose device encrypted it, if that is not its sender.
    """

    key: str
    notice: str
    every: timedelta = HOUR
    grace: timedelta = timedelta()
    owner: str = ""


class UndecryptableNotices:
    """Sends notices about undecryptable messages to the rooms they were sent in."""

    def __init__(
        self, stores: Stores, client: MatrixClient, policy: Policy, clock: Clock, trust: Trust
    ) -> None:
        self._trust = trust
        self._stores = stores
        self._client = client
        self._policy = policy
        self._clock = clock
        self._withheld = WithheldKeys(stores.database, clock)

    async def store_claim(self, tx: Transaction, claim: WithheldClaim) -> None:
        """Store the reason why a client withholds a key, if its user may get a notice."""
        rooms = [claim.room_id] if claim.room_id else self._client.rooms
        here = any(claim.sender in self._client.room(room_id).members for room_id in rooms)
        if here and claim.sender in self._policy.allowed:
            log.info("key withheld sender=%s code=%s", claim.sender, claim.code)
            await self._withheld.keep(tx, claim)

    async def notify(self, row: LockedEvent) -> None:
        """Send a notice that a message stays locked, once an hour per room, sender and reason (X-021)."""
        age, sender = self._clock.now() - row.received_at, row.raw.get("sender")
        if age >= DAY or sender not in self._policy.allowed:
            return
        reason = await self._reason(row, str(sender))
        if age < reason.grace:
            return
        about = (str(sender), row.conversation_id, reason.key, reason.every, reason.notice)
        async with self._stores.database.transaction() as tx:
            said = await self._trust.notify_person(tx, self._client.room(row.room_id), *about)
            if said and reason.owner:
                detail = f"{reason.owner} writes for {sender} -> {NO_BRIDGE}"
                await self._stores.health.note_in(tx, "bridge", "warn", detail)

    async def _reason(self, row: LockedEvent, sender: str) -> LockReason:
        key = f"locked {row.room_id} {sender}"
        refused = self._client.refused_device(row.room_id, row.raw)
        if refused is not None:
            called = self._client.device_name(refused.user_id, refused.device_id)
            return LockReason(*replaced_notice(refused, called, row.room_id), every=EVER)
        code = await self._withheld.code(sender, row.room_id, *session_of(row.raw))
        if code in WITHHELD:
            return LockReason(f"{key} {code}", WITHHELD[code].format(sender=sender))
        owner = self._client.sessions.owner(row.room_id, row.raw)
        if owner not in ("", sender):
            owner = harmless_id(owner, "somebody else")
            notice = BRIDGED.format(sender=sender, owner=owner)
            return LockReason(f"{key} bridge", notice, grace=KEYS_GRACE, owner=owner)
        return LockReason(key, LOCKED.format(sender=sender), grace=KEYS_GRACE)
