"""A conversation in the terminal: what is typed goes the way of every message, into the inbox."""

import asyncio
from collections.abc import Callable

from wintermute.clock import Clock
from wintermute.commands.stores import Stores
from wintermute.conversation.rooms import next_row
from wintermute.ids import NewId
from wintermute.mailbox.inbox import Waiting
from wintermute.mailbox.outbox import EVER, TERMINAL
from wintermute.messages import Incoming
from wintermute.terminal.screen import TerminalSpeaker
from wintermute.text import clean

AWAY = "The model does not answer: {problem}. I go on trying; /stop gives it up."


class Chat:
    """The owner's own chat at this machine, beside the ones in Matrix."""

    def __init__(
        self,
        stores: Stores,
        wake: Callable[[str], None],
        speaker: TerminalSpeaker,
        owner: str,
        clock: Clock,
        new_id: NewId,
    ) -> None:
        self._stores = stores
        self._wake = wake
        self._speaker = speaker
        self._owner = owner
        self._clock = clock
        self._new_id = new_id
        self._shown = asyncio.Condition()

    async def run(self) -> None:
        """Show the answers, until cancelled."""
        await self._hear_again()
        while True:
            self._speaker.stirred.clear()
            while row := await self._stores.outbox.next(TERMINAL):
                self._speaker.say(row.text(self._clock.now()), aside=row.answers is None)
                await self._stores.outbox.shown(row.id)
            async with self._shown:
                self._shown.notify_all()
            await self._speaker.stirred.wait()

    async def say(self, text: str) -> None:
        """Take a message or a command of the owner."""
        incoming = Incoming(
            event_id=self._new_id("typed"),
            room_id=TERMINAL,
            sender=self._owner,
            sender_name="",
            origin="owner",
            kind="command" if text.lstrip().startswith("/") else "message",
            body=clean(text).strip(),
            sent_at=self._clock.now(),
            direct=True,
        )
        conversation = await self._conversation()
        async with self._stores.database.transaction() as tx:
            await self._stores.inbox.store(tx, conversation, incoming, "waiting")
        self._wake(conversation)

    async def answered(self) -> bool:
        """Wait until all is answered and shown; False when the model is away."""
        conversation = await self._conversation()
        async with self._shown:
            while True:
                rows = await self._stores.inbox.open_rows(conversation)
                rows += await self._stores.inbox.stops(conversation)
                if not rows and await self._stores.outbox.next(TERMINAL) is None:
                    return True
                due, until = next_row(rows, self._clock.monotonic())
                waits = due is None and until is not None
                if waits and not await self._tell_away(rows[0]):
                    return False
                await self._shown.wait()

    async def _tell_away(self, row: Waiting) -> bool:
        """Say once that the model is away, to somebody who is sitting there; False: it was said."""
        part = await self._stores.health.part("model")
        is_outage = part is not None and part.state == "fail"
        key = f"outage {part.since.isoformat()}" if part and is_outage else f"alone {row.event_id}"
        said = AWAY.format(problem=part.detail if part and is_outage else "it gives no answer")
        async with self._stores.database.transaction() as tx:
            told = await self._stores.outbox.notice_once(
                tx, f"{key} {TERMINAL}", EVER, row.conversation_id, TERMINAL, said
            )
        self._speaker.speak(TERMINAL)
        return told

    async def _hear_again(self) -> None:
        """An outage that an earlier chat was told of is news to whoever opens this one."""
        async with self._stores.database.transaction() as tx:
            for key in await self._stores.outbox.noticed(tx, "outage "):
                if key.endswith(f" {TERMINAL}"):
                    await self._stores.outbox.notice_again(tx, key)

    async def typed(self, limit: int = 200) -> list[str]:
        """What was typed here before, oldest first."""
        return await self._stores.inbox.said_in(await self._conversation(), limit)

    async def _conversation(self) -> str:
        async with self._stores.database.transaction() as tx:
            return await self._stores.conversations.in_room(
                tx, TERMINAL, self._stores.owner_scope, "terminal"
            )
