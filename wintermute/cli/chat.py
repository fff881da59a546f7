"""`wintermute chat`: talk in the terminal, without Matrix."""

import asyncio
import sys

import click

from wintermute.cli.opening import open_config
from wintermute.cli.options import config_option
from wintermute.commands.chat import NAMES
from wintermute.config.schema import Config
from wintermute.daemon import open_chat
from wintermute.terminal.keyboard import Keyboard
from wintermute.terminal.pipe import Pipe
from wintermute.terminal.screen import Output
from wintermute.terminal.talk import talk

HINT = "Enter sends, Alt-Enter begins a new line, Ctrl-C stops an answer, Ctrl-D leaves.\n"


@click.command("chat")
@config_option
@click.pass_context
def command(ctx: click.Context) -> None:
    """Talk in the terminal, without Matrix.

    The same memory, tasks, skills and commands as in your direct chats. From a pipe each line is
    a message; leaves with 1 when one of them got no answer. The daemon must be stopped.

    Example: wintermute chat --config ~/wintermute/config.yaml
    """
    config = open_config(ctx, level="error")
    answered = asyncio.run(_chat(config, keyboard=sys.stdin.isatty()))
    ctx.exit(0 if answered else 1)


async def _chat(config: Config, *, keyboard: bool) -> bool:
    screen = Output(sys.stdout, live=sys.stdout.isatty())
    async with open_chat(config, screen) as chat:
        if keyboard:
            click.echo(HINT)
        lines = Keyboard(await chat.typed(), NAMES) if keyboard else Pipe(sys.stdin)
        return await talk(chat, lines)
