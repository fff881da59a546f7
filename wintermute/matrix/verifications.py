"""Running emoji verifications: messages go to the state machine of `sas`, its answers are sent.

Each has a row before its first message, so that the next run can cancel an unfinished one.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, TypeVar

from wintermute.clock import Clock, moment, stamp, wait_for_event
from wintermute.db import Database, Row, Transaction
from wintermute.errors import HomeserverUnavailable, SendRefused
from wintermute.health.health import HealthState, verification_step
from wintermute.mailbox.inbox import InboxRow
from wintermute.matrix import sas
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.inbox import Policy, is_direct, scope_of
from wintermute.matrix.people import PeopleStore
from wintermute.matrix.sas import LASTS, OutgoingMessages, Party, SasStep, Verification
from wintermute.matrix.signing import ED25519, digest
from wintermute.matrix.sync_response import VERIFICATION, VerificationMessage
from wintermute.messages import Json
from wintermute.stores import Stores

DAY = timedelta(days=1)
MISMATCHED = "m.mismatched_sas"
log = logging.getLogger(__name__)
T = TypeVar("T")
HOUR = timedelta(hours=1)
OLDEST = timedelta(minutes=10)  # of a request (Matrix spec, "Key verification framework")
NEWEST = timedelta(minutes=5)
CANCEL_LASTS = timedelta(minutes=1)  # trying to say that it is over
MOST_WAITING = 20  # messages of one verification; a whole one has six
MOST_OF_ONE = 5  # verifications of one person, all but the last about to end
MOST_AN_HOUR = 30  # strangers who are declined, or unknown transactions that are cancelled
LONGEST_WAIT = 5.0
LOOK_SECONDS = 1.0
"""Seconds between two checks for an answer given on this machine."""
COMMAND = "/verify "
"""Beginning of a transaction id before its request has an event; the command's event id follows."""
ASKED = (
    "I have sent you a verification request: accept it in your client. Then compare the emojis it "
    "shows with those that `wintermute matrix verify` shows on the machine I run on."
)
COMPARE = (
    "Please compare the emojis in your client with those that `wintermute matrix verify` shows on "
    "the machine I run on. Confirm only if all are the same."
)
NO_METHOD = (
    "The verification failed: your client does not offer a method that I know. Please use "
    "another client for it."
)
DIFFERENT = (
    "The emojis were different: somebody may be intercepting our messages. Please find out why "
    "before you go on; see docs/encryption.md."
)
UNFIT = (
    "The verification failed: your client sent data that does not match, so nothing was verified. "
    "Please begin again. If that fails too, use another client, or compare the fingerprints that "
    "`wintermute matrix verify` shows on the machine I run on."
)
FAILURES = {
    "m.unknown_method": NO_METHOD,
    MISMATCHED: DIFFERENT,
    "m.key_mismatch": UNFIT,
    "m.mismatched_commitment": UNFIT,
    "m.invalid_message": UNFIT,
    "m.unexpected_message": UNFIT,
}
"""Notices about failed verifications that the person did not cancel."""
NO_KEYS = "There is nothing to verify: `matrix.encryption` is off, so I have no keys."
NOT_OURS = (
    "I cannot be verified now: the homeserver has another identity for me than the one that I keep. "
    "`wintermute status` on the machine I run on says what to do."
)
TOO_MANY = "There are too many verifications under way. Please try again in a minute."
TOO_OLD = (
    "Your verification request reached me too late: it is over by now. Please ask again, or write "
    "`/verify` and accept the request that I send you then."
)


class VerificationStore:
    """The store of verifications, which the CLI reads; each stays for a day after its end."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def save(self, tx: Transaction, verification: Verification) -> None:
        """Store the state of a verification."""
        await tx.execute(
            "INSERT INTO verifications (txn_id, user_id, device_id, room_id, phase, shown, code,"
            " began_at, changed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (user_id, txn_id)"
            " DO UPDATE SET device_id = excluded.device_id, phase = excluded.phase,"
            " shown = excluded.shown, code = excluded.code, changed_at = excluded.changed_at",
            (
                verification.transaction_id,
                verification.their_user,
                verification.their_device,
                verification.room_id,
                verification.phase,
                comparison_text(verification),
                verification.code,
                stamp(verification.began_at),
                stamp(self._clock.now()),
            ),
        )

    async def rename(self, tx: Transaction, user: str, before: str, now: str) -> None:
        """Set the transaction id to the event id of the request."""
        await tx.execute(
            "UPDATE verifications SET txn_id = ? WHERE user_id = ? AND txn_id = ?",
            (now, user, before),
        )

    async def knows(self, tx: Transaction, user: str, transaction_id: str) -> bool:
        """Check if there is such a verification, running or ended."""
        query = "SELECT 1 FROM verifications WHERE user_id = ? AND txn_id = ?"
        return await tx.row(query, (user, transaction_id)) is not None

    async def unfinished(self, ours: Party) -> list[Verification]:
        """Return the verifications that are not over, with the fields that are stored."""
        rows = await self._database.rows(
            "SELECT txn_id, room_id, user_id, device_id, began_at FROM verifications"
            " WHERE phase NOT IN ('done', 'cancelled') ORDER BY began_at"
        )
        return [
            Verification(
                row["txn_id"],
                row["room_id"],
                ours,
                row["user_id"],
                row["device_id"],
                False,
                moment(row["began_at"]),
                "requested",
            )
            for row in rows
        ]

    async def comparison(self, since: datetime) -> Row | None:
        """Return the newest verification that has shown its emojis since a time."""
        return await self._database.row(
            "SELECT * FROM verifications WHERE phase = 'keyed' AND code = '' AND began_at > ?"
            " AND changed_at > ? ORDER BY changed_at DESC LIMIT 1",
            (stamp(self._clock.now() - LASTS), stamp(since)),
        )

    async def refuse(self, compared: Row) -> Literal["noted", "too late"]:
        """Store that a person at this machine said no, unless the client has confirmed already."""
        query = "UPDATE verifications SET code = ? WHERE user_id = ? AND txn_id = ? AND phase = ?"
        asked = (MISMATCHED, compared["user_id"], compared["txn_id"], "keyed")
        async with self._database.transaction() as tx:
            noted = await tx.execute(query, asked)
        return "noted" if noted else "too late"

    async def is_refused(self, verification: Verification) -> bool:
        """Check if a person at this machine said no."""
        query = "SELECT 1 FROM verifications WHERE user_id = ? AND txn_id = ? AND code <> ''"
        asked = (verification.their_user, verification.transaction_id)
        return await self._database.row(query, asked) is not None

    async def ending(self, compared: Row) -> tuple[HealthState, str] | None:
        """Return the result of a verification as text; None if it is running."""
        row = await self._database.row(
            "SELECT * FROM verifications WHERE user_id = ? AND txn_id = ?"
            " AND phase IN ('done', 'cancelled')",
            (compared["user_id"], compared["txn_id"]),
        )
        return verification_step(row) if row else None

    async def sweep(self) -> None:
        """Delete verifications that ended more than a day ago."""
        async with self._database.transaction() as tx:
            await tx.execute(
                "DELETE FROM verifications WHERE phase IN ('done', 'cancelled') AND changed_at < ?",
                (stamp(self._clock.now() - DAY),),
            )


def comparison_text(verification: Verification) -> str:
    """Return the emojis or numbers to compare, in one line."""
    if verification.emojis:
        return ", ".join(f"{sign} {name}" for sign, name in verification.emojis)
    return " ".join(map(str, verification.decimals))


@dataclass(slots=True, eq=False)
class RunningVerification:
    """A running verification, and its unprocessed messages.

    `end`: the code to cancel it with; `command`: its first id until its request is sent. Without
    `has_row` nothing of it is stored. `answered`: our answer was the first one in the room.
    """

    now: Verification
    out: OutgoingMessages = ()
    end: str = ""
    command: str = ""
    has_row: bool = True
    answered: bool = False
    waiting: deque[VerificationMessage] = field(default_factory=deque)
    wakeup: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, message: VerificationMessage) -> None:
        """Add a message; those above a limit are dropped, so that memory stays bounded."""
        if len(self.waiting) < MOST_WAITING:
            self.waiting.append(message)
            self.wakeup.set()

    def give_up(self, code: str) -> None:
        """Have the verification cancelled before any other step."""
        self.end = self.end or code
        self.wakeup.set()


class HourlyLimit:
    """A rate limiter: each key once an hour, and at most `MOST_AN_HOUR` keys in total."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[tuple[str, str], datetime] = {}

    def admits(self, user: str, name: str = "") -> bool:
        """Check if a key is allowed now, and count it."""
        now = self._clock.now()
        self._since = {key: at for key, at in self._since.items() if now - at < HOUR}
        if (user, name) in self._since or len(self._since) >= MOST_AN_HOUR:
            return False
        self._since[user, name] = now
        return True


class Verifications:
    """Runs verifications with allowed people, and refuses others."""

    def __init__(self, client: MatrixClient, stores: Stores, policy: Policy, clock: Clock) -> None:
        self._client = client
        self._stores = stores
        self._policy = policy
        self._clock = clock
        self._rows = VerificationStore(stores.database, clock)
        self._people = PeopleStore(stores.database, clock)
        self._open: set[RunningVerification] = set()
        self._begun: asyncio.Queue[RunningVerification] = asyncio.Queue()
        self._strangers = HourlyLimit(clock)
        self._unknown = HourlyLimit(clock)

    async def accept(self, tx: Transaction, message: VerificationMessage) -> str:
        """Accept a message in the transaction that stores the sync; `run` processes it later.

        Returns a notice for the room if it requests an impossible verification (F-024).
        """
        if message.room_id and message.sender == self._client.account.user_id:
            self._another_device(message)
            return ""
        exchange = self._find(message)
        if exchange is not None:
            exchange.take(message)
        elif message.kind == "request":
            return await self._on_request(tx, message)
        elif not message.room_id and message.kind not in ("cancel", "done"):
            await self._unknown_transaction(tx, message)
        return ""

    def recognise_event(self, txn_id: str, event_id: str) -> None:
        """Recognise an event of this device in its room; the sender may not have its answer yet."""
        for exchange in self._open:
            user = exchange.now.their_user
            if exchange.command and txn_id == _txn_id(user, exchange.command, "request"):
                exchange.now = replace(exchange.now, transaction_id=event_id)
            elif txn_id == _txn_id(user, exchange.now.transaction_id, "ready"):
                exchange.answered = True

    def is_running_in(self, room_id: str) -> bool:
        """Check if a verification is running in a room."""
        return any(exchange.now.room_id == room_id for exchange in self._open)

    async def ask(self, tx: Transaction, row: InboxRow) -> str:
        """Ask the sender of the command to verify; return the reply to the command."""
        if trouble := self._obstacle():
            return trouble
        if self._is_full(row.sender):
            return TOO_MANY
        name = f"{COMMAND}{row.event_id}"
        asked = sas.ask(name, row.room_id, self._our_party(), row.sender, self._clock.now())
        await self._start(tx, RunningVerification(asked, command=name))
        return ASKED

    def _obstacle(self) -> str:
        """Return why no verification is possible; "" if one is."""
        if not self._client.device_key:
            return NO_KEYS
        return NOT_OURS if self._client.identity.kind == "foreign" else ""

    def _find(self, message: VerificationMessage) -> RunningVerification | None:
        wanted = (message.sender, message.transaction_id, message.room_id)
        for exchange in self._open:
            now = exchange.now
            if (now.their_user, now.transaction_id, now.room_id) == wanted:
                return exchange
        return None

    def _another_device(self, message: VerificationMessage) -> None:
        """Stop silently if another device of ours has answered first."""
        if message.content.get("from_device") == self._client.account.device_id:
            return
        meant = (message.transaction_id, message.room_id)
        for exchange in self._open:
            now = exchange.now
            if (now.transaction_id, now.room_id) == meant and not now.we_asked:
                first = message.kind == "ready" and not exchange.answered
                if first or message.kind == "start":
                    exchange.give_up("m.accepted")

    async def _on_request(self, tx: Transaction, message: VerificationMessage) -> str:
        user, transaction_id, room_id = message.sender, message.transaction_id, message.room_id
        if not self._concerns_us(message) or await self._rows.knows(tx, user, transaction_id):
            return ""
        allowed, trouble, now = user in self._policy.allowed, self._obstacle(), self._clock.now()
        oldest, newest = (now - OLDEST).timestamp(), (now + NEWEST).timestamp()
        if not oldest * 1000 <= message.sent_ms <= newest * 1000:
            return TOO_OLD if allowed else ""
        if trouble or not allowed:
            if self._strangers.admits(user):
                self._refuse(message, "m.user")
            return trouble if allowed else ""
        if room_id and self._client.is_held(room_id):
            return ""
        if self._is_full(user):
            return TOO_MANY
        step = sas.answer_request(
            transaction_id, room_id, self._our_party(), user, message.content, now
        )
        await self._start(tx, RunningVerification(*step))
        return ""

    def _concerns_us(self, message: VerificationMessage) -> bool:
        """Check if a request is for us, in an allowed room."""
        rooms, room_id = self._policy.rooms, message.room_id
        us = message.content.get("to") == self._client.account.user_id
        return not room_id or (us and (not rooms or room_id in rooms))

    async def _unknown_transaction(self, tx: Transaction, message: VerificationMessage) -> None:
        user, transaction_id = message.sender, message.transaction_id
        if user not in self._policy.allowed or await self._rows.knows(tx, user, transaction_id):
            return
        if self._unknown.admits(user, transaction_id):
            self._refuse(message, "m.unknown_transaction")

    def _refuse(self, message: VerificationMessage, code: str) -> None:
        device, now = message.content.get("from_device"), self._clock.now()
        verification = Verification(
            message.transaction_id,
            message.room_id,
            self._our_party(),
            message.sender,
            device if isinstance(device, str) and 0 < len(device) <= 255 else "",
            False,
            now,
            "requested",
        )
        self._begun.put_nowait(RunningVerification(verification, end=code, has_row=False))

    async def _start(self, tx: Transaction, exchange: RunningVerification) -> None:
        """Start a verification; older ones of the same person are cancelled."""
        for other in self._open:
            if other.now.their_user == exchange.now.their_user:
                other.give_up("m.user")
        # Added before its row exists; otherwise `_resume` would take it for an earlier run's.
        self._open.add(exchange)
        await self._rows.save(tx, replace(exchange.now, phase="requested"))
        self._begun.put_nowait(exchange)

    def _is_full(self, user: str) -> bool:
        return sum(e.now.their_user == user for e in self._open) >= MOST_OF_ONE

    def _our_party(self) -> Party:
        account = self._client.account
        keys = (self._client.device_key, self._client.keys.identity.master)
        return Party(account.user_id, account.device_id, *keys)

    async def run(self) -> None:
        """Cancel verifications of an earlier run, and run new ones, until cancelled."""
        await self._resume()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sweep())
            while True:
                group.create_task(self._follow(await self._begun.get()))

    async def _sweep(self) -> None:
        while True:
            await self._rows.sweep()
            await self._clock.sleep(HOUR.total_seconds())

    async def _resume(self) -> None:
        """Cancel the verifications of an earlier run: their secrets are lost."""
        left = await self._rows.unfinished(self._our_party())
        begun = {(e.now.their_user, e.now.transaction_id) for e in self._open}
        for verification in left:
            name = verification.transaction_id
            if (verification.their_user, name) not in begun:
                late = self._clock.now() - verification.began_at >= LASTS
                end = "m.timeout" if late else "m.unknown_transaction"
                command = name if name.startswith(COMMAND) and verification.room_id else ""
                exchange = RunningVerification(verification, end=end, command=command)
                self._open.add(exchange)
                self._begun.put_nowait(exchange)

    async def _follow(self, exchange: RunningVerification) -> None:
        try:
            if exchange.has_row and not await self._is_stored(exchange):
                return
            if exchange.command:
                await self._request(exchange)
            if exchange.out:
                await self._apply(exchange, (exchange.now, exchange.out))
            while not exchange.now.is_over:
                await self._apply(exchange, await self._next_step(exchange))
        except (HomeserverUnavailable, SendRefused) as error:
            log.warning("verification given up user=%s reason=%s", exchange.now.their_user, error)
            code = "m.user" if isinstance(error, SendRefused) else "m.timeout"
            await self._store(exchange, replace(exchange.now, phase="cancelled", code=code))
        finally:
            self._open.discard(exchange)

    async def _is_stored(self, exchange: RunningVerification) -> bool:
        """Check if its row exists, after the transaction that began it: rows first, then effects."""
        user, transaction_id = exchange.now.their_user, exchange.now.transaction_id
        async with self._stores.database.transaction() as tx:
            return await self._rows.knows(tx, user, transaction_id)

    async def _request(self, exchange: RunningVerification) -> None:
        """Send the request to the room; its event id becomes the transaction id."""
        now, name = exchange.now, exchange.command
        content = sas.ask_in_room(now.ours, now.their_user)
        asking = replace(now, transaction_id=name)
        event_id = await self._retry_until_expired(
            now, lambda: self._send(asking, "request", content)
        )
        async with self._stores.database.transaction() as tx:
            await self._rows.rename(tx, now.their_user, name, event_id)
        exchange.now = replace(exchange.now, transaction_id=event_id)

    async def _next_step(self, exchange: RunningVerification) -> SasStep:
        """Wait for the next step of a verification, and return it."""
        while True:
            exchange.wakeup.clear()
            now = exchange.now
            if exchange.end == "m.accepted":
                return replace(now, phase="cancelled", code=exchange.end), ()
            if exchange.end:
                return sas.cancel(now, exchange.end)
            step = sas.expired(now, self._clock.now())
            if step[0].is_over:
                return step
            if exchange.waiting:
                message, keys = exchange.waiting.popleft(), dict[str, str]()
                if message.kind == "mac" and now.phase == "keyed":
                    served = partial(self._client.fresh_keys, now.their_user)
                    keys = await self._retry_until_expired(now, served)
                return sas.receive(now, message.kind, message.content, keys)
            left = (now.began_at + LASTS - self._clock.now()).total_seconds()
            if now.phase == "keyed":
                if await self._rows.is_refused(now):
                    return sas.cancel(now, MISMATCHED)
                left = min(left, LOOK_SECONDS)
            await wait_for_event(exchange.wakeup, self._clock, left)

    async def _apply(self, exchange: RunningVerification, step: SasStep) -> None:
        """Store a step, then send its messages; an end is stored after, so that a kill cannot leave it unsent."""
        verification, out = step
        ending = verification.phase == "cancelled"
        if not ending:
            await self._store(exchange, verification)
        for kind, content in out:
            send = partial(self._send, verification, kind, content)
            await self._retry_until_expired(verification, send)
        if ending:
            await self._store(exchange, verification)

    async def _store(self, exchange: RunningVerification, verification: Verification) -> None:
        before, exchange.now = exchange.now, verification
        if not exchange.has_row:
            return
        comparing = verification.phase == "keyed" and before.phase != "keyed"
        # No emojis in the room: whoever swaps keys can forge our messages, too.
        notice = FAILURES.get(verification.code, "") if verification.room_id else ""
        if comparing:
            notice = "" if verification.we_asked else COMPARE
        async with self._stores.database.transaction() as tx:
            await self._rows.save(tx, verification)
            if notice:
                await self._notify(tx, verification, notice)
            if verification.phase == "done":
                await self._store_verified(tx, verification)
        who = (verification.their_user, verification.their_device)
        if comparing:
            log.info(
                "verification user=%s device=%s compare=%s", *who, comparison_text(verification)
            )
        elif verification.is_over:
            how = (verification.phase, f" code={verification.code}" if verification.code else "")
            log.info("verification over user=%s device=%s phase=%s%s", *who, *how)

    async def _notify(self, tx: Transaction, verification: Verification, notice: str) -> None:
        """Send a notice once, in the verification's room or in the person's direct chat."""
        account, user = self._client.account, verification.their_user
        rooms = (verification.room_id,) if verification.room_id else self._client.rooms
        for view in map(self._client.room, rooms):
            theirs = is_direct(view, account, self._policy) and user in view.members
            if (verification.room_id or theirs) and not self._client.is_held(view.room_id):
                scope = scope_of(view, account, self._policy)
                conversation = await self._stores.conversations.in_room(tx, view.room_id, scope)
                step = f"{verification.phase} {user} {verification.transaction_id}"
                key, notices = f"verification {step}", self._stores.notices
                await notices.notice_once(tx, key, DAY, conversation, notice)
                return

    async def _store_verified(self, tx: Transaction, verification: Verification) -> None:
        """Store that they have verified the identity that we trust; another one is ignored (X-035)."""
        person = self._client.people.person(verification.their_user)
        if person is None or person.changed_to is not None:
            return
        if f"{ED25519}{person.master_key}" in verification.verified_keys:
            ours = verification.ours.master_key
            await self._people.store_verified(tx, person.user_id, person.master_key, ours)

    async def _retry_until_expired(
        self, verification: Verification, attempt: Callable[[], Awaitable[T]]
    ) -> T:
        """Repeat an attempt until the verification expires. Raises: HomeserverUnavailable, SendRefused."""
        until, wait = verification.began_at + LASTS, 0.25
        if verification.is_over:
            until = max(until, self._clock.now() + CANCEL_LASTS)
        while True:
            try:
                return await attempt()
            except HomeserverUnavailable as error:
                wait = error.retry_after or min(wait * 2, LONGEST_WAIT)
                if self._clock.now() + timedelta(seconds=wait) >= until:
                    raise
                log.warning("verification delayed seconds=%s reason=%s", wait, error)
                await self._clock.sleep(wait)

    async def _send(self, verification: Verification, kind: str, content: Json) -> str:
        """Send one message, once per step; return its event id, "" for a to-device message."""
        user, room_id = verification.their_user, verification.room_id
        txn_id = _txn_id(user, verification.transaction_id, kind)
        event_type = f"{VERIFICATION}{kind}" if kind != "request" else "m.room.message"
        if not room_id:
            device = verification.their_device or "*"
            await self._client.send_to_device(event_type, user, device, content, txn_id)
            return ""
        if self._client.is_held(room_id):
            raise SendRefused("somebody in the room has another identity now", "m.user")
        encrypted = room_id in await self._stores.known.encrypted()
        return await self._client.send(
            room_id, content, txn_id, encrypted=encrypted, event_type=event_type
        )


def _txn_id(user: str, transaction_id: str, kind: str) -> str:
    """Return a transaction id that is unique per user. (Some web servers reject a slash in a path.)"""
    return digest(f"{user} {transaction_id} {kind}".encode()).replace("/", "_")
