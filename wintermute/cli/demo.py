"""`wintermute demo`: a conversation without any setup."""

import asyncio
import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from click.core import ParameterSource

from wintermute.cli.opening import configure_logging, open_config
from wintermute.cli.options import config_option, unread
from wintermute.config.read import environment
from wintermute.config.schema import Config
from wintermute.demo.demo_runner import DemoPlan, run_demo
from wintermute.demo.homeserver import require_synapse
from wintermute.demo.practice_server import read_lines
from wintermute.errors import WintermuteError
from wintermute.terminal.markdown import Renderer, can_draw


@click.command("demo")
@config_option
@click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    help="Keep everything in this folder for the next time; default: a temporary folder.",
)
@click.option(
    "--script",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True, readable=True),
    help="Type the lines of this file one after another, then end.",
)
@click.option("--practice", is_flag=True, help="Use the practice model even if there is another.")
@click.pass_context
def command(ctx: click.Context, folder: Path | None, script: Path | None, practice: bool) -> None:
    """Try Wintermute, with nothing to set up.

    Starts a private Matrix homeserver on this machine and drops you into an encrypted room with the
    bot. It uses the model of --config, or of OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL, or
    an Ollama or llama.cpp on this machine. Otherwise it uses a built-in practice model. Lines may
    also come from a pipe. `/quit` or Ctrl-D ends everything.

    Example: wintermute demo --folder ~/wintermute-demo
    """
    require_synapse()
    config = _config(ctx)
    lines = None
    if script is not None or not sys.stdin.isatty():
        lines = read_lines(script)
    with _folder(folder) as place:
        draw = Renderer().whole if sys.stdout.isatty() and can_draw() else str
        plan = DemoPlan(place, config, practice, environment(), lines, click.echo, draw)
        with unread():
            asyncio.run(run_demo(plan))


def _config(ctx: click.Context) -> Config | None:
    """Return the configuration if one was named: the demo does not look for one."""
    contexts = (ctx, ctx.find_root())
    sources = {context.get_parameter_source("config") for context in contexts}
    if sources <= {ParameterSource.DEFAULT, None}:
        configure_logging("error", str, environment())
        config = None
    else:
        config = open_config(ctx, level="error")
    # The terminal is for the conversation; warnings of libraries would disturb it.
    logging.getLogger().setLevel(logging.ERROR)
    return config


@contextmanager
def _folder(wanted: Path | None) -> Iterator[Path]:
    if wanted is None:
        with tempfile.TemporaryDirectory(prefix="wintermute-demo-") as temporary:
            yield Path(temporary)
        return
    try:
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise WintermuteError(
            f"cannot make {error.filename}: {error.strerror}: choose a folder of your own"
        ) from error
    yield wanted
