"""`wintermute chat`: the same engine at a terminal and in a pipe, as processes of their own."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.world.bot import Bot, write_settings
from tests.world.clock import WITHIN
from tests.world.glass import PromptGlass
from tests.world.homeserver import Login
from tests.world.house import ANN, open_house
from tests.world.model import (
    Calls,
    ContextTooLarge,
    Cut,
    Drip,
    Fail,
    Hang,
    ModelServer,
    Slow,
    Text,
    Use,
    own_words,
)
from tests.world.typist import Typist, typing
from tests.world.warm import Interpreter
from wintermute.commands.memories import NOTHING_YET
from wintermute.config.lock import hold
from wintermute.conversation import replies
from wintermute.matrix.speaker import MatrixSpeaker
from wintermute.messages import Json, Usage
from wintermute.terminal.screen import VOID, TerminalSpeaker
from wintermute.text import EMPTY_LISTS

NOWHERE = "http://127.0.0.1:9"
BESIDE = re.compile("(?<=^you>) {2,}· waiting for [a-z ]+, [0-9]+ s$")


@dataclass(frozen=True)
class Seat:
    """Where somebody chats: a folder, a model, and an interpreter for pipes."""

    folder: Path
    model: ModelServer
    python: Interpreter

    @property
    def config(self) -> Path:
        """The configuration, as `settings` wrote it."""
        return self.folder / "bot" / "config.yaml"

    def settings(self, url: str = "", **sections: Json) -> Path:
        login = Login("@bot:test", "token", "DEVICE", "secret")
        given = url or self.model.url
        return write_settings(self.folder / "bot", NOWHERE, login, given, ANN, **sections)

    async def pipe(self, given: bytes) -> tuple[int, str, str]:
        """`printf … | wintermute chat`: its exit code, output and errors."""
        words = "--config", str(self.config), "chat"
        env = {"PATH": os.defpath}
        done = await self.python.command(*words, cwd=self.config.parent, env=env, given=given)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    @asynccontextmanager
    async def terminal(self) -> AsyncIterator["Terminal"]:
        env = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        words = "--config", str(self.config), "chat"
        async with typing(Terminal, *words, size=(24, 80), **env) as terminal:
            await terminal.until("you>")
            yield terminal


@pytest.fixture
def seat(tmp_path: Path, model: ModelServer, python: Interpreter) -> Seat:
    seat = Seat(tmp_path, model, python)
    seat.settings()
    return seat


class Terminal(Typist):
    """`wintermute chat` in a terminal of its own."""

    async def until(self, text: str, *, after: str = "") -> str:
        """Wait until a text was shown, behind another one; all that was shown so far."""
        await self.until_seen(lambda: text in self.seen.rpartition(after or "\0")[2])
        return self.seen

    async def stands(self, *rows: str) -> None:
        """Wait until these are the last rows on the screen that are not blank."""
        await self.until_seen(lambda: self.rows[-len(rows) :] == rows)

    @property
    def rows(self) -> tuple[str, ...]:
        """Those that are not blank, without what is said beside a prompt."""
        rows = self.screen.splitlines()
        return tuple(BESIDE.sub("", row) for row in rows if row)

    @property
    def screen(self) -> str:
        """What stands there now, and what has scrolled off."""
        glass = PromptGlass()
        whole, mark, steers = self.seen.rpartition("\x1b")
        glass.write(self.seen if glass.steers.match(mark + steers) else whole)
        return glass.text


async def test_what_a_pipe_asks_to_forget_is_forgotten_when_it_ends(seat: Seat) -> None:
    """M-030: no daemon need come for it."""
    keep = Calls((Use("append_memory", {"entry": "Ann's boss is called Peter"}),))
    seat.model.script(keep, Text("I keep that"))
    given = b"My boss is called Peter\n/forget Peter\n/forget yes\n"
    code, said, errors = await seat.pipe(given)
    assert (code, errors) == (0, "")
    assert "I forget it for good" in said
    code, said, _ = await seat.pipe(b"/memory\n")
    assert (code, said) == (0, f"{NOTHING_YET}\n")


async def test_each_line_of_a_pipe_is_answered(seat: Seat) -> None:
    """L-083: messages and commands, in order, and one conversation over several runs."""
    code, said, errors = await seat.pipe(b"hi\n\n/tasks\nbye")
    assert (code, errors) == (0, "")
    assert said.splitlines() == ["echo: hi", EMPTY_LISTS["tasks"], "echo: bye"]
    assert (await seat.pipe(b"again\n"))[1] == "echo: again\n"
    asked = [
        own_words(m["content"]) for m in seat.model.requests[-1].messages if m["role"] == "user"
    ]
    assert asked == ["hi", "bye", "again"]


async def test_a_chat_needs_no_password_of_matrix_but_the_keys_of_its_models(seat: Seat) -> None:
    """L-082, L-083."""
    backend = {"base_url": seat.model.url, "model": "scripted", "api_key": {"file": "key"}}
    seat.settings(llm={"backends": {"scripted": backend}})
    (seat.config.parent / "password").unlink()
    (seat.config.parent / "key").write_text("a key that is good")
    assert await seat.pipe(b"hi\n") == (0, "echo: hi\n", "")
    (seat.config.parent / "key").unlink()
    code, said, errors = await seat.pipe(b"hi\n")
    assert (code, said, errors.count("\n")) == (2, "", 1)
    assert "llm.backends.scripted.api_key: there is no file" in errors


async def test_a_pipe_that_leaves_a_message_without_an_answer_ends_with_one(seat: Seat) -> None:
    """L-034, L-083: also where the reason was told, and whatever comes after it."""
    seat.settings(llm={"max_retries": 0})
    seat.model.script(Fail(401), Text("fine"))
    code, said, _ = await seat.pipe(b"hi\nand now?\n")
    assert (code, "refuses the key" in said, said.endswith("fine\n")) == (1, True, True), said
    assert (await seat.pipe(b"well?\n"))[:2] == (0, "echo: well?\n")
    seat.model.script(ContextTooLarge(), ContextTooLarge(), ContextTooLarge())
    code, said, _ = await seat.pipe(b"hi\n")
    assert code == 1, said


async def test_a_terminal_has_seeds_tools_and_the_owners_memory(seat: Seat) -> None:
    """L-083: the same as in the owner's direct chats."""
    seat.settings(seed={"enabled": True})
    seat.model.script(
        Text("Hello!"),
        Calls((Use("append_memory", {"entry": "Ann likes tea."}),)),
        Text("I keep that."),
    )
    code, said, _ = await seat.pipe(b"I like tea\n/memory\n")
    assert code == 0
    assert said.startswith("Hello!\nI keep that.\n- Ann likes tea.\n")
    assert (seat.config.parent / "data" / "MEMORIES.txt").read_text() == "Ann likes tea.\n"


async def test_a_start_with_a_list_writes_it_before_anything_is_said(seat: Seat) -> None:
    """M-077: whoever has switched back finds the whole list in the file, and edits it there."""
    seat.settings(memory={"backend": "fts5", "working_set_size": 1})
    file = seat.config.parent / "data" / "MEMORIES.txt"
    uses = [
        Use("append_memory", {"entry": entry}) for entry in ("Ann likes tea.", "Ann has a dog.")
    ]
    seat.model.script(Calls(tuple(uses)), Text("noted"))
    assert (await seat.pipe(b"I like tea and have a dog\n/memory dog\n"))[0] == 0
    assert file.read_text().startswith("# generated")
    seat.settings(memory={"backend": "flat_file"})
    assert (await seat.pipe(b""))[0] == 0
    assert file.read_text() == "Ann likes tea.\nAnn has a dog.\n"
    file.write_text("Ann has a dog.\nAnn has a cat.\n")
    _, said, _ = await seat.pipe(b"/memory\n")
    assert [line.partition(" (")[0] for line in said.splitlines()] == [
        "- Ann has a cat.",
        "- Ann has a dog.",
    ]


@pytest.mark.slow
async def test_a_pipe_does_not_wait_for_a_model_that_is_away(seat: Seat) -> None:
    """L-034, F-036: said at once and to each, exit 1, and nothing is left to be answered some day."""
    seat.model.keyed(lambda seen: Fail(503))
    for given in (b"hi\nmore\n", b"hi again\n"):
        code, said, _ = await seat.pipe(given)
        assert code == 1, said
        assert said.startswith("The model does not answer: scripted answered 503")
    seat.model.keyed(lambda seen: None)
    assert (await seat.pipe(b"back?\n"))[1] == "echo: back?\n"


@pytest.mark.slow
async def test_a_pipe_hears_why_there_is_no_answer_in_the_words_of_the_rooms(seat: Seat) -> None:
    """F-036, L-034: what is to be done about it, and what it costs is no model that is away."""
    seat.settings(NOWHERE)
    code, said, _ = await seat.pipe(b"hi\n")
    away = re.escape(replies.UNREACHABLE).replace(
        re.escape("{problem}"), "scripted is not reachable.*"
    )
    assert (code, bool(re.match(away, said))) == (1, True), said
    seat.settings(llm={"budget": {"tokens_per_day": 50_000}})
    seat.model.script(Text("Much.", usage=Usage(30_000, 20_000, 0)))
    assert (await seat.pipe(b"hi\n"))[:2] == (0, "Much.\n")
    for _ in range(2):
        code, said, _ = await seat.pipe(b"more\n")
        assert code == 1, said
        assert "Reminders and commands still work" in said
        assert "does not answer" not in said


async def test_the_data_folder_of_a_running_daemon_is_refused(seat: Seat) -> None:
    """DESIGN §4, L-082."""
    with hold(seat.config.parent / "data"):
        code, said = await Bot(seat.config, seat.python).command("chat")
    assert code == 1
    assert f"process {os.getpid()}" in said
    assert said.count("\n") == 1


@pytest.mark.slow
async def test_an_answer_to_an_earlier_chat_says_what_it_answers(seat: Seat) -> None:
    """After a kill: in one dim line, before the answer; what was typed here needs none."""
    seat.model.script(Hang())
    async with seat.terminal() as terminal:
        terminal.type("what is there to see in Rome, and where can one eat well near it?\r")
        await seat.model.request_arrived(1)
    async with seat.terminal() as terminal:
        shown = await terminal.until("echo: what is there")
        line = "\x1b[2m· answering: what is there to see in Rome, and where can one eat well ne…\x1b[0m"
        assert shown.count("· answering") == 1
        assert line in shown.partition("echo: ")[0]
        terminal.type("and in Ulm?\r")
        assert (await terminal.until("echo: and in Ulm?")).count("· answering") == 1


async def test_an_answer_is_shown_while_it_is_written(seat: Seat) -> None:
    """L-083: text as it comes, a dim line for each tool, nothing twice."""
    gate = asyncio.Semaphore(0)
    seat.model.script(
        Calls((Use("task", {"action": "list"}),), text="Let me look."),
        Drip("first second third", gate),
    )
    async with seat.terminal() as terminal:
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
        terminal.type("/quit\r")
        async with asyncio.timeout(WITHIN):
            assert await terminal.process.wait() == 0


@pytest.mark.slow
async def test_what_is_typed_ahead_stands_in_the_next_line(seat: Seat) -> None:
    """F-037: not within the answer that is being drawn, which it would tear apart."""
    gate = asyncio.Semaphore(0)
    seat.model.script(Drip("first second", gate))
    async with seat.terminal() as terminal:
        terminal.type("go\r")
        gate.release()
        await terminal.until("first ")
        terminal.type("/help\r")
        gate.release()
        shown = await terminal.until("this list")
        assert shown.index("second") < shown.rindex("/help")
        assert "/help" not in shown[shown.index("first") : shown.index("second")]


async def test_an_interrupt_stops_the_answer_and_not_the_chat(seat: Seat) -> None:
    """L-023: Ctrl-C is `/stop` while something runs."""
    seat.model.script(Hang())
    async with seat.terminal() as terminal:
        terminal.type("think\r")
        await seat.model.request_arrived(1)
        os.killpg(terminal.process.pid, signal.SIGINT)
        await terminal.until("Stopped.")
        terminal.type("and now?\r")
        await terminal.until("echo: and now?")


@pytest.mark.slow
async def test_commands_are_answered_while_a_message_waits(seat: Seat) -> None:
    """F-035: what reads at once, what changes the conversation in its turn; the absence is told once."""
    seat.settings(llm={"max_retries": 0})
    seat.model.keyed(lambda _: Fail(503))
    async with seat.terminal() as terminal:
        terminal.type("hello\r")
        shown = await terminal.until("you>", after="does not answer")
        terminal.type("/status all\r")
        await terminal.until("to be sent", after="/status all")
        terminal.type("/new\r")
        await terminal.until("waits until I have answered", after="/new")
        terminal.type("/stop\r")
        shown = await terminal.until("A new conversation", after="Stopped.")
        assert shown.count("does not answer") == 1


@pytest.mark.slow
async def test_reasoning_that_turns_out_to_be_some_is_taken_from_the_screen(seat: Seat) -> None:
    """F-020: also more of it than the screen has room for, from a model of which nothing is known."""
    gate = asyncio.Semaphore(0)
    thought = "".join(f"Perhaps {number}\n\n" for number in range(40))
    seat.model.script(Drip(f"{thought}or </think>Seven.", gate), Text("Hm.</think>Eight."))
    async with seat.terminal() as terminal:
        terminal.type("how many?\r")
        for _ in range(41):
            gate.release()
        await terminal.until("Perhaps 39")
        assert "Perhaps 39" in terminal.screen
        gate.release()
        await terminal.stands("you> how many?", "Seven.", "you>")
        assert "Perhaps" not in terminal.screen
        terminal.type("and now?\r")
        await terminal.stands("you> how many?", "Seven.", "you> and now?", "Eight.", "you>")
        assert "Hm." not in terminal.seen


@pytest.mark.slow
async def test_a_model_that_is_known_can_take_back_what_is_still_on_the_screen(seat: Seat) -> None:
    """F-020: and an attempt that broke off leaves nothing either."""
    seat.model.script(
        Text("Six."),
        Text("Let me see.\n\nI count.\n\nOnce more.</think>Seven."),
        Cut("No, wait"),
        Text("Eight."),
    )
    async with seat.terminal() as terminal:
        for question, answer in (("one", "Six."), ("two", "Seven."), ("three", "Eight.")):
            terminal.type(f"{question}\r")
            await terminal.stands(f"you> {question}", answer, "you>")
        assert "Let me see." in terminal.seen


@pytest.mark.slow
async def test_lines_can_be_typed_while_the_model_is_silent(seat: Seat) -> None:
    """F-035: what reads is answered at once, the rest in its turn; then the answer is drawn as ever."""
    begins, gate = asyncio.Event(), asyncio.Semaphore(0)
    seat.model.script(Slow(begins, Drip("first second", gate)))
    async with seat.terminal() as terminal:
        terminal.type("hello\r")
        await terminal.stands("you> hello", "you>")
        terminal.type("/tasks\r")
        await terminal.until("No tasks or reminders here.")
        terminal.type("/new\r")
        await terminal.until("waits until I have answered", after="/new")
        await terminal.until("you>", after="waits until I have answered")
        begins.set()
        gate.release()
        await terminal.until("first")
        assert "first" in terminal.rows
        assert "you>" not in terminal.rows
        gate.release()
        await terminal.until("A new conversation", after="second")
        await terminal.until("you>", after="A new conversation")
        assert terminal.screen.count("first second") == 1


@pytest.mark.slow
async def test_a_line_that_is_being_typed_stays_when_the_answer_comes(seat: Seat) -> None:
    """F-035: the answer stands above it."""
    begins = asyncio.Event()
    seat.model.script(Slow(begins, Text("Here it is.\n\nAll of it.")))
    async with seat.terminal() as terminal:
        terminal.type("hello\r")
        await terminal.stands("you> hello", "you>")
        terminal.type("and th")
        await terminal.until("and th")
        begins.set()
        await terminal.stands("Here it is.", "All of it.", "you> and th")
        terminal.type("en?\r")
        await terminal.stands("you> and then?", "echo: and then?", "you>")


@pytest.mark.slow
async def test_an_interrupt_at_an_empty_line_stops_the_message_that_waits(seat: Seat) -> None:
    """L-023, F-035: a line that has begun is cleared, as ever."""
    seat.model.script(Hang())
    async with seat.terminal() as terminal:
        terminal.type("hello\r")
        await terminal.stands("you> hello", "you>")
        terminal.type("oops")
        await terminal.until("oops")
        terminal.type("\x03")
        await terminal.stands("you> oops", "you>")
        assert "Stopped." not in terminal.seen
        terminal.type("\x03")
        await terminal.until("Stopped.")
        terminal.type("and now?\r")
        await terminal.stands("you> and now?", "echo: and now?", "you>")


@pytest.mark.slow
async def test_what_broke_off_is_not_left_standing_while_a_message_waits(seat: Seat) -> None:
    """F-020, F-035: nor said with the answer to a command."""
    seat.model.keyed(lambda _: Cut("One.\n\nTwo.\n\nThree.\n\nand so on, until it breaks"))
    seat.settings(llm={"max_retries": 0})
    async with seat.terminal() as terminal:
        terminal.type("hello\r")
        await terminal.until("keep trying")
        await terminal.until("you>", after="keep trying")
        terminal.type("/tasks\r")
        await terminal.stands("you> /tasks", EMPTY_LISTS["tasks"].replace("*", ""), "you>")
        assert "Two." in terminal.seen
        assert "Two." not in terminal.screen


@pytest.mark.slow
async def test_several_lines_and_earlier_lines_can_be_sent(seat: Seat) -> None:
    """Issue 4: Alt-Enter begins a line; the history survives the process; commands complete."""
    async with seat.terminal() as terminal:
        terminal.type("one\x1b\rtwo\r")
        await terminal.until("echo: one")
        await seat.model.request_arrived(1)
    assert seat.model.requests[0].last_user == "one\ntwo"
    async with seat.terminal() as terminal:
        terminal.type("\x1b[A")
        await terminal.until("two")
        terminal.type("\r")
        await seat.model.request_arrived(2)
    assert seat.model.requests[1].last_user == "one\ntwo"


@pytest.mark.slow
async def test_odd_bytes_and_closed_pipes_are_no_tracebacks(seat: Seat) -> None:
    """L-082; what a shell does to a process is done to real ones."""
    code, _, said = await seat.pipe(b"caf\351\n")
    assert (code, said) == (0, "")
    assert "caf\ufffd" in seat.model.requests[0].last_user
    program = f"{sys.executable} -m wintermute --config {seat.config} chat"
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


async def test_the_terminal_leaves_the_rooms_of_matrix_to_the_daemon(seat: Seat) -> None:
    """A message that waits there is not answered here, and the other way round."""
    async with open_house(seat.config.parent / "data", seat.model.url) as house:
        await house.incoming("from the room", room="!room:test")
    assert (await seat.pipe(b"hi\n"))[1] == "echo: hi\n"
    assert [seen.last_user for seen in seat.model.requests] == ["hi"]
    assert TerminalSpeaker(Paper()).serves("!room:test") is False
    assert MatrixSpeaker.serves(None, "terminal") is False  # type: ignore[arg-type]  # needs no self


class Paper:
    """A screen that keeps what was written."""

    live = True

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


@pytest.mark.parametrize(
    ("pieces", "final", "shown"),
    [
        (["", "Hel", "lo"], "Hello", "Hello\n"),
        (["", "Hel"], "Hello", "Hello\n"),
        (["", "half", "", "Hello"], "Hello", "Hello\n"),
        (["", "wrong"], "Hello", "wrong\nHello\n"),
        ([], "Hello", "Hello\n"),
        (["", "a\x1b[2Jb\u202e"], "a\x1b[2Jb\u202e", "a[2Jb\n"),
    ],
)
def test_the_screen_shows_each_word_once(pieces: list[str], final: str, shown: str) -> None:
    """L-083: and nothing of a model's answer steers the terminal; what may have to go is held back."""
    speaker = TerminalSpeaker(paper := Paper())
    for piece in pieces:
        speaker.draft("terminal", piece)
    speaker.say(final)
    assert paper.text == shown


def test_a_notice_in_the_middle_of_an_answer_says_nothing_of_it_again() -> None:
    """F-036: such as that the model is back."""
    speaker = TerminalSpeaker(paper := Paper())
    for _ in range(2):
        for piece in ("", "Hello ", "there"):
            speaker.draft("terminal", piece)
        speaker.say("The model answers again.", aside=True)
        speaker.draft("terminal", ", you")
        speaker.say("Hello there, you.")
    first = "The model answers again.\nHello there, you.\n"
    assert paper.text == first + "Hello there\nThe model answers again.\n, you.\n"


def test_what_a_plain_terminal_shows_of_a_known_model_is_voided() -> None:
    """F-020: it cannot be taken away there."""
    speaker = TerminalSpeaker(paper := Paper())
    for piece in ("", "Six."):
        speaker.draft("terminal", piece)
    speaker.say("Six.")
    for piece in ("", "I count", "", "Seven."):
        speaker.draft("terminal", piece)
    speaker.say("Seven.")
    assert paper.text == f"Six.\nI count\n\x1b[2m· {VOID}\x1b[0m\nSeven.\n"


async def test_matrix_never_sends_what_a_terminal_waits_for(tmp_path: Path) -> None:
    """An answer that was not shown before the terminal was closed stays there."""
    async with open_house(tmp_path, None) as house:
        async with house.database.transaction() as tx:
            scope = house.stores.owner.scope
            conversation = await house.conversations.in_room(tx, "terminal", scope, "terminal")
            await house.outbox.enqueue(tx, conversation, "late", meant_for="")
            here = await house.conversations.in_room(tx, "!room:test", scope)
            await house.outbox.enqueue(tx, here, "here", meant_for="")
        assert await house.outbox.conversations_waiting() == [(here, "!room:test")]
