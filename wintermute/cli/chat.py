"""`wintermute chat`: talk in the terminal, without Matrix."""

import asyncio
import io
import sys

import click

from wintermute.cli.opening import open_config
from wintermute.cli.options import config_option, unread
from wintermute.clock import SystemClock
from wintermute.commands.chat import NAMES
from wintermute.config.schema import Config
from wintermute.daemon import open_chat
from wintermute.errors import ungrouped
from wintermute.terminal.keyboard import Keyboard, without_echo
from wintermute.terminal.markdown import MarkdownPage, can_draw
from wintermute.terminal.screen import Output, Pipe, run_chat

HINT = "Enter sends, Alt-Enter begins a new line, Ctrl-C stops an answer, /quit leaves.\n"


@click.command("chat")
@config_option
@click.pass_context
def command(ctx: click.Context) -> None:
    """Talk in the terminal, without Matrix.

    You have the same memory, tasks, skills and commands as in your direct chats. Stop the daemon
    first. From a pipe, each line is a message. The exit code is 1 if one of them got no answer.

    Example: wintermute chat --config ~/wintermute/config.yaml
    """
    config = open_config(ctx, level="error", spared="matrix")
    ctx.exit(0 if asyncio.run(_chat(config)) else 1)


async def _chat(config: Config) -> bool:
    """Chat until the input ends; True if every line got its answer."""
    keyboard = sys.stdin is not None and sys.stdin.isatty()
    answered = False
    with ungrouped(), unread():
        output = Output(lambda: sys.stdout)
        drawn = output.live and can_draw()
        page = MarkdownPage(output, _is_ours, SystemClock().monotonic) if drawn else None
        async with open_chat(config, output, _warn, attended=keyboard, page=page) as chat:
            if keyboard:
                click.echo(HINT)
                keys = Keyboard(await chat.typed(), NAMES, lambda: chat.waiting)
                with without_echo():
                    answered = await run_chat(chat, keys)
            else:
                lines = sys.stdin.buffer if sys.stdin else io.BytesIO()
                answered = await run_chat(chat, Pipe(lines))
    return answered


def _warn(line: str) -> None:
    click.echo(line, err=True)


def _is_ours() -> bool:
    """Return True if we may draw: while a line is typed, stdout belongs to the prompt."""
    return sys.stdout is sys.__stdout__
