"""`wintermute chat`: the same engine at a terminal and in a pipe, as processes of their own."""

import asyncio
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.world.bot import Bot, write_settings
from tests.world.clock import WITHIN
from tests.world.homeserver import Login
from tests.world.house import ANN, open_house
from tests.world.model import Calls, Drip, Fail, Hang, ModelServer, Text, Use
from tests.world.warm import Interpreter
from wintermute.config.lock import hold
from wintermute.matrix.speaker import MatrixSpeaker
from wintermute.messages import Json
from wintermute.terminal.screen import TerminalSpeaker

Piped = Callable[[Path, bytes], Awaitable[tuple[int, str, str]]]
"""`printf … | wintermute chat`: its exit code, output and errors."""
NOWHERE = "http://127.0.0.1:9"


def settings(folder: Path, model: str, **sections: Json) -> Path:
    login = Login("@bot:test", "token", "DEVICE", "secret")
    return write_settings(folder / "bot", NOWHERE, login, model, ANN, **sections)


@pytest.fixture
def piped(python: Interpreter) -> Piped:
    async def run(config: Path, given: bytes) -> tuple[int, str, str]:
        words = "--config", str(config), "chat"
        env = {"PATH": os.defpath}
        done = await python.command(*words, cwd=config.parent, env=env, given=given)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    return run


class Terminal:
    """`wintermute chat` in a terminal of its own."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self.process = process
        self._master = master
        self._seen = b""
        self._more = asyncio.Event()
        asyncio.get_running_loop().add_reader(master, self._read)

    def _read(self) -> None:
        try:
            self._seen += os.read(self._master, 65536)
        except OSError:  # the other end is gone
            asyncio.get_running_loop().remove_reader(self._master)
        self._more.set()

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    async def until(self, text: str, *, after: str = "") -> str:
        """Wait until a text was shown, behind another one; all that was shown so far."""
        async with asyncio.timeout(WITHIN):
            while text not in self.seen.rpartition(after or "\0")[2]:
                self._more.clear()
                await self._more.wait()
        return self.seen

    @property
    def seen(self) -> str:
        return self._seen.decode(errors="replace")


@asynccontextmanager
async def at_terminal(config: Path) -> AsyncIterator[Terminal]:
    master, slave = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "wintermute", "--config", str(config), "chat"),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},  # noqa: TID251
        start_new_session=True,
    )
    os.close(slave)
    terminal = Terminal(process, master)
    try:
        await terminal.until("you>")
        yield terminal
    finally:
        asyncio.get_running_loop().remove_reader(master)
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(master)


async def test_each_line_of_a_pipe_is_answered(
    tmp_path: Path, model: ModelServer, piped: Piped
) -> None:
    """L-083: messages and commands, in order, and one conversation over several runs."""
    config = settings(tmp_path, model.url)
    code, said, errors = await piped(config, b"hi\n\n/tasks\nbye")
    assert (code, errors) == (0, "")
    assert said.splitlines() == ["echo: hi", "There is nothing to be done here.", "echo: bye"]
    assert (await piped(config, b"again\n"))[1] == "echo: again\n"
    asked = [m["content"] for m in model.requests[-1].messages if m["role"] == "user"]
    assert asked == ["hi", "bye", "again"]


async def test_a_terminal_has_seeds_tools_and_the_owners_memory(
    tmp_path: Path, model: ModelServer, piped: Piped
) -> None:
    """L-083: the same as in the owner's direct chats."""
    config = settings(tmp_path, model.url, seed={"enabled": True})
    model.script(
        Text("Hello!"),
        Calls((Use("append_memory", {"entry": "Ann likes tea."}),)),
        Text("I keep that."),
    )
    code, said, _ = await piped(config, b"I like tea\n/memory\n")
    assert code == 0
    assert said.startswith("Hello!\nI keep that.\n- Ann likes tea. (`fact_")
    assert (config.parent / "data" / "MEMORIES.txt").read_text() == "Ann likes tea.\n"


async def test_a_pipe_does_not_wait_for_a_model_that_is_away(
    tmp_path: Path, model: ModelServer, piped: Piped
) -> None:
    """L-034, F-036: said at once and to each, exit 1, and nothing is left to be answered some day."""
    config = settings(tmp_path, model.url)
    model.keyed(lambda seen: Fail(503))
    for given in (b"hi\nmore\n", b"hi again\n"):
        code, said, _ = await piped(config, given)
        assert code == 1
        assert said.startswith("The model does not answer: scripted answered 503")
    model.keyed(lambda seen: None)
    assert (await piped(config, b"back?\n"))[1] == "echo: back?\n"


async def test_the_data_folder_of_a_running_daemon_is_refused(
    tmp_path: Path, model: ModelServer, python: Interpreter
) -> None:
    """DESIGN §4, L-082."""
    config = settings(tmp_path, model.url)
    with hold(config.parent / "data"):
        code, said = await Bot(config, python).command("chat")
    assert code == 1
    assert f"process {os.getpid()}" in said
    assert said.count("\n") == 1


async def test_an_answer_is_shown_while_it_is_written(tmp_path: Path, model: ModelServer) -> None:
    """L-083: text as it comes, a dim line for each tool, nothing twice."""
    gate = asyncio.Semaphore(0)
    model.script(
        Calls((Use("task", {"action": "list"}),), text="Let me look."),
        Drip("first second third", gate),
    )
    async with at_terminal(settings(tmp_path, model.url)) as terminal:
        terminal.type("what is to do?\r")
        shown = await terminal.until("· task")
        assert "Let me look." in shown
        gate.release()
        shown = await terminal.until("first ")
        assert "second" not in shown
        gate.release()
        gate.release()
        shown = await terminal.until("third")
        assert shown.count("first") == 1
        await terminal.until("you>", after="third")
        terminal.type("\x04")
        async with asyncio.timeout(WITHIN):
            assert await terminal.process.wait() == 0


async def test_what_is_typed_ahead_stands_in_the_next_line(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-037: not within the answer that is being drawn, which it would tear apart."""
    gate = asyncio.Semaphore(0)
    model.script(Drip("first second", gate))
    async with at_terminal(settings(tmp_path, model.url)) as terminal:
        terminal.type("go\r")
        gate.release()
        await terminal.until("first ")
        terminal.type("/help\r")
        gate.release()
        shown = await terminal.until("this list")
        assert shown.index("second") < shown.rindex("/help")
        assert "/help" not in shown[shown.index("first") : shown.index("second")]


async def test_an_interrupt_stops_the_answer_and_not_the_chat(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-023: Ctrl-C is `/stop` while something runs."""
    model.script(Hang())
    async with at_terminal(settings(tmp_path, model.url)) as terminal:
        terminal.type("think\r")
        await model.request_arrived(1)
        os.killpg(terminal.process.pid, signal.SIGINT)
        await terminal.until("Stopped.")
        terminal.type("and now?\r")
        await terminal.until("echo: and now?")


async def test_commands_are_answered_while_a_message_waits(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-035: what reads at once, what changes the conversation in its turn; the absence is told once."""
    config = settings(tmp_path, model.url, llm={"max_retries": 0})
    model.keyed(lambda _: Fail(503))
    async with at_terminal(config) as terminal:
        terminal.type("hello\r")
        shown = await terminal.until("you>", after="does not answer")
        terminal.type("/status\r")
        await terminal.until("to be sent", after="/status")
        terminal.type("/new\r")
        await terminal.until("has its turn once", after="/new")
        terminal.type("/stop\r")
        shown = await terminal.until("A fresh start", after="Stopped.")
        assert shown.count("does not answer") == 1


async def test_several_lines_and_earlier_lines_can_be_sent(
    tmp_path: Path, model: ModelServer
) -> None:
    """Issue 4: Alt-Enter begins a line; the history survives the process; commands complete."""
    config = settings(tmp_path, model.url)
    async with at_terminal(config) as terminal:
        terminal.type("one\x1b\rtwo\r")
        await terminal.until("echo: one")
        await model.request_arrived(1)
    assert model.requests[0].last_user == "one\ntwo"
    async with at_terminal(config) as terminal:
        terminal.type("\x1b[A")
        await terminal.until("two")
        terminal.type("\r")
        await model.request_arrived(2)
    assert model.requests[1].last_user == "one\ntwo"


async def test_odd_bytes_and_closed_pipes_are_no_tracebacks(
    tmp_path: Path, model: ModelServer, piped: Piped
) -> None:
    """L-082; what a shell does to a process is done to real ones."""
    config = settings(tmp_path, model.url)
    code, _, said = await piped(config, b"caf\351\n")
    assert (code, said) == (0, "")
    assert "caf\ufffd" in model.requests[0].last_user
    program = f"{sys.executable} -m wintermute --config {config} chat"
    for line, shown in (
        (f"printf '1\\n2\\n3\\n' | {program} | head -1", b"echo: 1\n"),
        (f"{program} <&-", b""),
        (f"printf '1\\n' | {program} >&-", b""),
    ):
        done = await asyncio.create_subprocess_shell(
            line, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(WITHIN):
            output, errors = await done.communicate()
        assert (done.returncode, errors) == (0, b""), line
        assert output.startswith(shown), line


async def test_the_terminal_leaves_the_rooms_of_matrix_to_the_daemon(
    tmp_path: Path, model: ModelServer, piped: Piped
) -> None:
    """A message that waits there is not answered here, and the other way round."""
    config = settings(tmp_path, model.url)
    async with open_house(config.parent / "data", model.url) as house:
        await house.incoming("from the room", room="!room:test")
    assert (await piped(config, b"hi\n"))[1] == "echo: hi\n"
    assert [seen.last_user for seen in model.requests] == ["hi"]
    assert TerminalSpeaker(Paper(live=True)).serves("!room:test") is False
    assert MatrixSpeaker.serves(None, "terminal") is False  # type: ignore[arg-type]  # needs no self


class Paper:
    """A screen that keeps what was written."""

    def __init__(self, *, live: bool) -> None:
        self.live = live
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


@pytest.mark.parametrize(
    ("pieces", "final", "shown"),
    [
        (["", "Hel", "lo"], "Hello", "Hello\n"),
        (["", "Hel"], "Hello", "Hello\n"),
        (["", "half", "", "Hello"], "Hello", "half\n\x1b[2m· again\x1b[0m\nHello\n"),
        (["", "wrong"], "Hello", "wrong\nHello\n"),
        ([], "Hello", "Hello\n"),
        (["", "a\x1b[2Jb\u202e"], "a\x1b[2Jb\u202e", "a[2Jb\n"),
    ],
)
def test_the_screen_shows_each_word_once(pieces: list[str], final: str, shown: str) -> None:
    """L-083: and nothing of a model's answer steers the terminal."""
    paper = Paper(live=True)
    speaker = TerminalSpeaker(paper)
    for piece in pieces:
        speaker.draft("terminal", piece)
    speaker.say(final)
    assert paper.text == shown


def test_a_notice_in_the_middle_of_an_answer_says_nothing_of_it_again() -> None:
    """F-036: such as that the model is back."""
    paper = Paper(live=True)
    speaker = TerminalSpeaker(paper)
    for piece in ("", "Hello ", "there"):
        speaker.draft("terminal", piece)
    speaker.say("The model answers again.", aside=True)
    speaker.draft("terminal", ", you")
    speaker.say("Hello there, you.")
    assert paper.text == "Hello there\nThe model answers again.\n, you.\n"


async def test_matrix_never_sends_what_a_terminal_waits_for(tmp_path: Path) -> None:
    """An answer that was not shown before the terminal was closed stays there."""
    async with open_house(tmp_path, None) as house:
        async with house.database.transaction() as tx:
            scope = house.stores.owner_scope
            conversation = await house.conversations.in_room(tx, "terminal", scope, "terminal")
            await house.outbox.say(tx, conversation, "terminal", "late", meant_for="")
            await house.outbox.say(tx, conversation, "!room:test", "here", meant_for="")
        assert await house.outbox.rooms_waiting() == ["!room:test"]
