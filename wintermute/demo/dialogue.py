"""What is typed goes to the room, and what the bot says there is shown."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.patch_stdout import patch_stdout

from wintermute.db import Database
from wintermute.demo.person import Heard, Person
from wintermute.errors import WintermuteError
from wintermute.text import harmless

YOU, BOT = "you> ", "wintermute> "
PATIENCE_SECONDS = 90.0  # after 60 the daemon tells why there is no answer


class Dialogue:
    """One room on one terminal."""

    def __init__(
        self,
        person: Person,
        room_id: str,
        daemons: Database,
        show: Callable[[str], None],
        draw: Callable[[str], str],
    ) -> None:
        """`daemons`: the daemon's own database, to see which messages are an answer.

        `draw` makes of a message what is shown.
        """
        self._person = person
        self._room_id = room_id
        self._database = daemons
        self._show = show
        self._draw = draw
        self._texts: dict[str, str] = {}
        self._parts: set[str] = set()

    async def typed(self) -> None:
        """Until the person ends it: type at any time, messages are shown as they come."""
        session: PromptSession[str] = PromptSession(YOU)
        with patch_stdout(raw=True):  # what is drawn has its colours; a message steers nothing
            async with _beside(self._show_all()):
                while True:
                    try:
                        line = await session.prompt_async(handle_sigint=False)
                    except (EOFError, KeyboardInterrupt):
                        return
                    if line.strip():
                        await self._say(line)

    async def _say(self, line: str) -> None:
        """A line that the homeserver does not take, such as a very long one, ends nothing."""
        try:
            await self._person.say(self._room_id, line)
        except WintermuteError as error:
            self._show(f"not sent: {harmless(str(error))}")

    async def dictated(self, lines: AsyncIterator[str]) -> None:
        """Say each line when the one before is answered.

        Raises: WintermuteError when an answer does not come.
        """
        async for line in lines:
            if line.strip():
                self._show(YOU + line)
                await self._answered(await self._person.say(self._room_id, line))

    async def _answered(self, event_id: str) -> None:
        while not await self._is_answered(event_id):
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    self._heard(await self._person.heard.get())
            except TimeoutError:
                raise WintermuteError(f"no answer within {PATIENCE_SECONDS:.0f} s") from None

    async def _is_answered(self, event_id: str) -> bool:
        """Whether everything that answers an event was heard."""
        rows = await self._database.rows(
            "SELECT txn_id FROM outbox LEFT JOIN outbox_parts ON outbox_id = id WHERE answers = ?",
            (event_id,),
        )
        return bool(rows) and {row["txn_id"] for row in rows} <= self._parts

    async def _show_all(self) -> None:
        while True:
            self._heard(await self._person.heard.get())

    def _heard(self, message: Heard) -> None:
        """Show a message; of one that grew, what is new."""
        self._parts.add(message.part)
        before = self._texts.get(message.replaces or "")
        self._texts[message.replaces or message.event_id] = message.text
        if before is None:
            drawn = self._draw(message.text)
            self._show(f"{BOT}\n{drawn}" if "\n" in drawn else BOT + drawn)
        elif message.text.startswith(before):
            self._show(self._draw(message.text.removeprefix(before)))
        else:
            self._show(f"wintermute, corrected> {self._draw(message.text)}")


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Something endless that ends with the block."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
        yield
        task.cancel()
