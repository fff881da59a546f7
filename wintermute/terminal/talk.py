"""The dialogue at the terminal: a line, its answers, the next line."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from wintermute.terminal.chat import Chat


class Lines(Protocol):
    """Where lines come from."""

    @property
    def patient(self) -> bool:
        """Whether somebody is there who can wait for a model that is away."""
        ...

    async def next(self) -> str | None:
        """The next line; None: there are no more."""
        ...


async def talk(chat: Chat, lines: Lines) -> bool:
    """Take lines until there are no more; False when one of them got no answer.

    Ctrl-C while an answer is made stops that answer.
    """
    await _answered(chat)  # what an earlier chat left
    while (line := await lines.next()) is not None:
        if not line.strip():
            continue
        await chat.say(line)
        if not await _answered(chat) and not lines.patient:
            await chat.say("/stop")  # nobody would see an answer later on
            await chat.answered()
            return False
    return True


async def _answered(chat: Chat) -> bool:
    async with asyncio.TaskGroup() as group:
        with _interrupts(asyncio.Event()) as pressed:
            stopping = group.create_task(_stop(chat, pressed))
            answered = await chat.answered()
        stopping.cancel()
    return answered


async def _stop(chat: Chat, pressed: asyncio.Event) -> None:
    while True:
        await pressed.wait()
        pressed.clear()
        await chat.say("/stop")


@contextmanager
def _interrupts(pressed: asyncio.Event) -> Iterator[asyncio.Event]:
    """Ctrl-C sets the event instead of ending the program."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, pressed.set)
    try:
        yield pressed
    finally:
        loop.remove_signal_handler(signal.SIGINT)
