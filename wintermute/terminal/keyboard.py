"""Input from a keyboard: history, several lines, completion of commands. Only `chat` loads this."""

import sys
import termios
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout

PROMPT = "you> "
SECOND = 1.0
LEAVES = ("/quit", "/exit", "quit", "exit")
"""Lines that end the chat, as in other shells; they are never sent to the assistant."""


class Keyboard:
    """Lines typed by a person. Enter sends, Alt-Enter begins a new line, /quit or Ctrl-D ends the chat."""

    interactive = True

    def __init__(
        self, typed: Iterable[str], commands: Mapping[str, str], waiting: Callable[[], str]
    ) -> None:
        """`typed`: earlier lines, oldest first; `commands`: the help text of each command.

        `waiting`: returns the text to show beside the line about a wait; "" for nothing.
        """
        self._waiting = waiting
        history = InMemoryHistory()
        for line in typed:
            history.append_string(line)
        self._session: PromptSession[str] = PromptSession(
            history=history,
            completer=_Commands(commands),
            complete_while_typing=True,
            multiline=True,
            key_bindings=_keys(),
            prompt_continuation="     ",
            reserve_space_for_menu=4,
            rprompt=self._wait_text,
            refresh_interval=SECOND,
        )

    async def next(self, *, waits: bool) -> str | None:
        """Return the next input, which may have several lines; None after /quit or Ctrl-D. Ctrl-C clears it.

        `waits`: an answer is awaited, so Ctrl-C on an empty line returns `/stop`.
        """
        while True:
            self._session.app.erase_when_done = False
            try:
                with patch_stdout(raw=True):  # dim lines stay dim
                    line = await self._session.prompt_async(PROMPT)
                    return None if line.strip() in LEAVES else line
            except KeyboardInterrupt:
                if waits and not self._session.default_buffer.text:
                    return "/stop"
            except EOFError:
                return None

    def end_prompt(self) -> None:
        """End the prompt with a blank line if nothing is typed yet."""
        app = self._session.app
        if app.is_running and not app.is_done and not self._session.default_buffer.text:
            app.erase_when_done = True
            app.exit(result="")

    def _wait_text(self) -> StyleAndTextTuples:
        return [("ansibrightblack", "" if self._session.app.is_done else self._waiting())]


@contextmanager
def without_echo() -> Iterator[None]:
    """Hide typed characters while an answer is drawn; the next prompt shows them."""
    before = termios.tcgetattr(sys.stdin)
    quiet = termios.tcgetattr(sys.stdin)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


class _Commands(Completer):
    """Completion of the command that the line begins with."""

    def __init__(self, commands: Mapping[str, str]) -> None:
        self._commands = commands

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        begun = document.text_before_cursor
        if begun.startswith("/") and " " not in begun:
            for name, text in self._commands.items():
                if name.startswith(begun):
                    yield Completion(name, start_position=-len(begun), display_meta=text)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
