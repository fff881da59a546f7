"""The person at the terminal, as a Matrix client: keys, rooms and messages of their own.

What is typed goes to the room, and what the bot says there is shown.
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
PATIENCE_SECONDS = 90.0  # after 60 the daemon tells why there is no answer


@dataclass(frozen=True, slots=True)
class Heard:
    """A message of somebody else. `part`: what its sender calls it; `replaces`: what it edits.

    `text`: of one that is still being written, the lines that have come to their end.
    """

    event_id: str
    sender: str
    text: str
    part: str
    replaces: str | None


class DemoPerson:
    """Hears everything from where the last start stopped; says what is typed."""

    def __init__(self, client: MatrixClient, session: Session, since: Path, clock: Clock) -> None:
        self._client = client
        self._since = since
        self._clock = clock
        self._token = since.read_text("utf-8") if since.exists() else None
        self._locked: list[tuple[str, Json]] = []
        self._news = asyncio.Condition()
        self.session = session
        self.heard: asyncio.Queue[Heard] = asyncio.Queue()
        """Messages in the order in which they could be read."""

    async def begin(self) -> None:
        """The first sync: rooms and members are known, and others can encrypt for us."""
        await self._round(full_state=True, wait_s=0)

    async def listen(self) -> None:
        """Sync until cancelled."""
        while True:
            try:
                await self._round(full_state=False, wait_s=LONG_POLL_SECONDS)
            except (HomeserverUnavailable, SendRefused):
                await self._clock.sleep(AGAIN_SECONDS)

    async def until_with(self, room_id: str, user_id: str, within: float) -> None:
        """Wait until somebody is in an encrypted room with us. Raises: TimeoutError."""

        def together() -> bool:
            view = self._client.room(room_id)
            return view.encrypted and user_id in view.members

        async with asyncio.timeout(within), self._news:
            await self._news.wait_for(together)

    async def say(self, room_id: str, text: str) -> str:
        """Send a message, encrypted or not at all; its event id."""
        content = {"msgtype": "m.text", "body": text, "m.mentions": {}}
        return await self._client.send(room_id, content, new_id("said"), encrypted=True)

    async def take_back(self, room_id: str, event_id: str) -> None:
        """Delete a message. Raises: WintermuteError."""
        await self._client.redact(room_id, event_id, new_id("gone"))

    async def _round(self, *, full_state: bool, wait_s: float) -> None:
        batch = await self._client.sync(self._token, full_state=full_state, wait_s=wait_s)
        await self._client.upkeep()
        # Whoever knows the password that the demo prints is the person at the terminal.
        await self._client.sign_all_devices()
        came = self._locked + [
            (room.room_id, event) for room in batch.joined for event in room.events
        ]
        self._locked = [
            (room_id, event) for room_id, event in came if not self._read(room_id, event)
        ]
        self._token = batch.next_batch
        write(self._since, batch.next_batch)  # nothing between hearing and this: none shown twice
        async with self._news:
            self._news.notify_all()

    def _read(self, room_id: str, event: Json) -> bool:
        """Take in an event; False while its key is missing."""
        clear = self._client.decrypted(room_id, event)
        if clear is None:
            return False
        message = heard(clear)
        if message is not None and message.sender != self.session.user_id:
            self.heard.put_nowait(message)
        return True


def heard(event: Json) -> Heard | None:
    """The message in an event in clear; None when it is something else."""
    content = event["content"]
    relation = content.get("m.relates_to")
    edits = isinstance(relation, dict) and relation.get("rel_type") == "m.replace"
    shown = content.get("m.new_content") if edits else content
    body = shown.get("body") if isinstance(shown, dict) else None
    if event["type"] != "m.room.message" or not isinstance(body, str):
        return None
    is_live = LIVE in mapping(shown)
    return Heard(
        str(event["event_id"]),
        str(event["sender"]),
        harmless(body[: body.rfind("\n") + 1].rstrip() if is_live else body),
        str(mapping(content.get(OUTBOX_KEY)).get("id")),
        str(relation.get("event_id")) if edits else None,
    )


@asynccontextmanager
async def present(matrix: Matrix, folder: Path) -> AsyncIterator[DemoPerson]:
    """The person of this account, logged in, with keys, and known to others."""
    clock = SystemClock()
    session = await logged_in(matrix, folder)
    async with open_client(matrix, session, folder, new_id, clock, People()) as client:
        person = DemoPerson(client, session, folder / "since", clock)
        await person.begin()
        yield person


YOU, BOT = "you> ", "wintermute> "


class Dialogue:
    """One room on one terminal."""

    def __init__(
        self,
        person: DemoPerson,
        room_id: str,
        daemons: Database,
        show: Callable[[str], None],
        draw: Callable[[str], str],
        command: Callable[..., Awaitable[str]],
    ) -> None:
        """`daemons`: the daemon's own database, to see which messages are an answer.

        `draw` makes of a message what is shown, `command` runs one of the program's own beside it.
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
        """Until the person ends it: type at any time, messages are shown as they come."""
        session: PromptSession[str] = PromptSession(YOU)
        with patch_stdout(raw=True):  # what is drawn has its colours; a message steers nothing
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
        """A line that the homeserver does not take, such as a very long one, ends nothing."""
        try:
            if not await self._done_here(line):
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
                if not await self._done_here(line):
                    await self._answered(await self._person.say(self._room_id, line))

    async def _done_here(self, line: str) -> bool:
        """Do what is no message to the bot; False: the line is one."""
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
        told = "There is nothing to write about yet."
        if await self._database.exists(known, (self._room_id,)):
            told = await self._command("wiki", "consolidate", "--conversation", self._room_id)
        changed = [line[: -len(".md")] for line in told.splitlines() if line.endswith(".md")]
        names = [line.rpartition("/")[2] for line in changed if not line.startswith("meta/")]
        written = f"Written: {', '.join(names)}. Ask about it, also after /new."
        self._show(written if names else f"{told} If you have just said it, try again in a moment.")

    async def _delete(self, words: str) -> None:
        """Delete the person's newest message that has these words, as a graphical client does."""
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
        if message.text == (before or ""):  # nothing of it is complete yet, or nothing more
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
    """Something endless that ends with the block."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
        yield
        task.cancel()
