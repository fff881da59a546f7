"""The person at the terminal, as a Matrix client with keys, rooms and messages of their own.

Typed lines go to the room, and the bot's messages there are shown.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.patch_stdout import patch_stdout

from wintermute.clock import Clock, SystemClock
from wintermute.config.schema import Matrix
from wintermute.db import Database
from wintermute.demo.homeserver import write
from wintermute.errors import HomeserverUnavailable, SendRefused, WintermuteError
from wintermute.ids import new_id
from wintermute.matrix.client import MatrixClient, open_client
from wintermute.matrix.inbox import OUTBOX_KEY
from wintermute.matrix.kept_login import Session
from wintermute.matrix.login import logged_in
from wintermute.matrix.people import People
from wintermute.messages import Json, mapping
from wintermute.terminal.keyboard import LEAVES
from wintermute.text import harmless

LONG_POLL_SECONDS = 30.0
AGAIN_SECONDS = 0.5
LIVE = "org.matrix.msc4357.live"
"""The field of a message that is still being written (MSC4357)."""
VERIFY = (
    "This terminal cannot compare emojis, but a graphical client can: see the lines at the start."
)
PATIENCE_SECONDS = 90.0  # after 60 the daemon reports why there is no answer


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message of somebody else. `part`: its sender's name for it; `replaces`: the event it edits.

    `text`: of a growing message, the complete lines.
    """

    event_id: str
    sender: str
    text: str
    part: str
    replaces: str | None


class TerminalUser:
    """A Matrix client that goes on where the last start stopped, and sends typed lines."""

    def __init__(self, client: MatrixClient, session: Session, since: Path, clock: Clock) -> None:
        self._client = client
        self._since = since
        self._clock = clock
        self._token = since.read_text("utf-8") if since.exists() else None
        self._locked: list[tuple[str, Json]] = []
        self._news = asyncio.Condition()
        self.session = session
        self.heard: asyncio.Queue[ReceivedMessage] = asyncio.Queue()
        """The messages, in the order in which they became readable."""

    async def begin(self) -> None:
        """Run the first sync: rooms and members are known, and others can encrypt for us."""
        await self._round(full_state=True, wait_s=0)

    async def listen(self) -> None:
        """Sync until cancelled."""
        while True:
            try:
                await self._round(full_state=False, wait_s=LONG_POLL_SECONDS)
            except (HomeserverUnavailable, SendRefused):
                await self._clock.sleep(AGAIN_SECONDS)

    async def wait_for_member(self, room_id: str, user_id: str, within: float) -> None:
        """Wait until a person is in an encrypted room with us. Raises: TimeoutError."""

        def together() -> bool:
            view = self._client.room(room_id)
            return view.encrypted and user_id in view.members

        async with asyncio.timeout(within), self._news:
            await self._news.wait_for(together)

    async def say(self, room_id: str, text: str) -> str:
        """Send a message, encrypted or not at all. Return its event id."""
        content = {"msgtype": "m.text", "body": text, "m.mentions": {}}
        return await self._client.send(room_id, content, new_id("said"), encrypted=True)

    async def take_back(self, room_id: str, event_id: str) -> None:
        """Delete a message. Raises: WintermuteError."""
        await self._client.redact(room_id, event_id, new_id("gone"))

    async def _round(self, *, full_state: bool, wait_s: float) -> None:
        batch = await self._client.sync(self._token, full_state=full_state, wait_s=wait_s)
        await self._client.upkeep()
        # A login with the printed password is the person at the terminal.
        await self._client.sign_all_devices()
        came = self._locked + [
            (room.room_id, event) for room in batch.joined for event in room.events
        ]
        self._locked = [
            (room_id, event) for room_id, event in came if not self._read(room_id, event)
        ]
        self._token = batch.next_batch
        write(self._since, batch.next_batch)  # at once, so that no message is shown twice
        async with self._news:
            self._news.notify_all()

    def _read(self, room_id: str, event: Json) -> bool:
        """Process an event. False while its key is missing."""
        clear = self._client.decrypt(room_id, event)
        if clear is None:
            return False
        message = heard(clear)
        if message is not None and message.sender != self.session.user_id:
            self.heard.put_nowait(message)
        return True


def heard(event: Json) -> ReceivedMessage | None:
    """Return the message in an event in clear; None if it is something else."""
    content = event["content"]
    relation = content.get("m.relates_to")
    edits = isinstance(relation, dict) and relation.get("rel_type") == "m.replace"
    shown = content.get("m.new_content") if edits else content
    body = shown.get("body") if isinstance(shown, dict) else None
    if event["type"] != "m.room.message" or not isinstance(body, str):
        return None
    is_live = LIVE in mapping(shown)
    return ReceivedMessage(
        str(event["event_id"]),
        str(event["sender"]),
        harmless(body[: body.rfind("\n") + 1].rstrip() if is_live else body),
        str(mapping(content.get(OUTBOX_KEY)).get("id")),
        str(relation.get("event_id")) if edits else None,
    )


@asynccontextmanager
async def present(matrix: Matrix, folder: Path) -> AsyncIterator[TerminalUser]:
    """Log the person in, with keys that others know."""
    clock = SystemClock()
    session = await logged_in(matrix, folder)
    async with open_client(matrix, session, folder, new_id, clock, People()) as client:
        person = TerminalUser(client, session, folder / "since", clock)
        await person.begin()
        yield person


YOU, BOT = "you> ", "wintermute> "


class Dialogue:
    """One room on one terminal."""

    def __init__(
        self,
        person: TerminalUser,
        room_id: str,
        daemons: Database,
        show: Callable[[str], None],
        draw: Callable[[str], str],
        command: Callable[..., Awaitable[str]],
    ) -> None:
        """`daemons` is the daemon's database, which shows the messages that are answers.

        `draw` renders a message, `command` runs one of the program's own commands.
        """
        self._person = person
        self._room_id = room_id
        self._database = daemons
        self._show = show
        self._draw = draw
        self._command = command
        self._texts: dict[str, str] = {}
        self._parts: set[str] = set()

    async def typed(self) -> None:
        """Run until the person ends it: they type at any time, and messages are shown as they come."""
        session: PromptSession[str] = PromptSession(YOU)
        with patch_stdout(raw=True):  # for colours; messages are made harmless before
            async with _beside(self._show_all()):
                while True:
                    try:
                        line = await session.prompt_async(handle_sigint=False)
                    except (EOFError, KeyboardInterrupt):
                        return
                    if line.strip() in LEAVES:
                        return
                    if line.strip():
                        await self._say(line)

    async def _say(self, line: str) -> None:
        """Send a line; if the homeserver refuses it, such as a very long one, the dialogue goes on."""
        try:
            if not await self._is_local_command(line):
                await self._person.say(self._room_id, line)
        except WintermuteError as error:
            self._show(f"not sent: {harmless(str(error))}")

    async def dictated(self, lines: AsyncIterator[str]) -> None:
        """Send each line when the one before is answered.

        Raises: WintermuteError if an answer does not come.
        """
        async for line in lines:
            if line.strip():
                self._show(YOU + line)
                if not await self._is_local_command(line):
                    await self._answered(await self._person.say(self._room_id, line))

    async def _is_local_command(self, line: str) -> bool:
        """Carry out a line that is no message to the bot. False: it is a message."""
        word, _, rest = line.strip().partition(" ")
        match word:
            case "/delete" if rest:
                await self._delete(rest.strip())
            case "/pages" if not rest:
                await self._make_pages()
            case "/verify" if not rest:
                self._show(VERIFY)
            case _:
                return False
        return True

    async def _make_pages(self) -> None:
        self._show("I am writing this chat into wiki pages...")
        known = "SELECT 1 FROM conversations WHERE room_id = ?"
        output = "There is nothing to write about yet."
        if await self._database.exists(known, (self._room_id,)):
            output = await self._command("wiki", "consolidate", "--conversation", self._room_id)
        changed = [line[: -len(".md")] for line in output.splitlines() if line.endswith(".md")]
        names = [line.rpartition("/")[2] for line in changed if not line.startswith("meta/")]
        written = f"Written: {', '.join(names)}. Ask about it, also after /new."
        self._show(
            written if names else f"{output} If you have just said it, try again in a moment."
        )

    async def _delete(self, words: str) -> None:
        """Delete the person's newest message with these words, as a graphical client does."""
        rows = await self._database.rows(
            "SELECT event_id, body FROM inbox WHERE sender = ? AND room_id = ? AND kind = 'message'"
            " AND instr(lower(body), lower(?)) ORDER BY seq DESC LIMIT 1",
            (self._person.session.user_id, self._room_id, words),
        )
        for row in rows:
            await self._person.take_back(self._room_id, row["event_id"])
            self._show(f"deleted, as in any Matrix client: {harmless(row['body'])}")
        if not rows:
            self._show("no message of yours has these words")

    async def _answered(self, event_id: str) -> None:
        while not await self._is_answered(event_id):
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    self._heard(await self._person.heard.get())
            except TimeoutError:
                raise WintermuteError(f"no answer within {PATIENCE_SECONDS:.0f} s") from None

    async def _is_answered(self, event_id: str) -> bool:
        """Return True if all messages that answer an event were received."""
        rows = await self._database.rows(
            "SELECT txn_id FROM outbox LEFT JOIN outbox_parts ON outbox_id = id WHERE answers = ?",
            (event_id,),
        )
        return bool(rows) and {row["txn_id"] for row in rows} <= self._parts

    async def _show_all(self) -> None:
        while True:
            self._heard(await self._person.heard.get())

    def _heard(self, message: ReceivedMessage) -> None:
        """Show a message; of a grown one, only its new part."""
        self._parts.add(message.part)
        before = self._texts.get(message.replaces or "")
        if message.text == (before or ""):  # no complete line yet, or no new one
            return
        self._texts[message.replaces or message.event_id] = message.text
        if before is None:
            drawn = self._draw(message.text)
            self._show(f"{BOT}\n{drawn}" if "\n" in drawn else BOT + drawn)
        elif message.text.startswith(before):
            self._show(self._draw(message.text.removeprefix(before).lstrip("\n")))
        else:
            self._show(f"wintermute, corrected> {self._draw(message.text)}")


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run an endless task for a block."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
        yield
        task.cancel()
