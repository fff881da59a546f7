"""`wintermute web` and `wintermute wiki web`: pages in the browser, beside a daemon or without one."""

import asyncio
import dataclasses
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from wintermute.cli.opening import open_config, opened_stores
from wintermute.cli.options import config_option
from wintermute.cli.wiki_store import settings_of, store_option
from wintermute.clock import SystemClock
from wintermute.config.lock import holder
from wintermute.config.schema import Config
from wintermute.daemon import serve_alone, serve_store
from wintermute.db import open_database
from wintermute.errors import WintermuteError, ungrouped
from wintermute.health.health import Health
from wintermute.web.door import EXPOSED, PART, address_of, open_listener
from wintermute.web.sessions import DoorStore

ALONE = (
    "No daemon is running, so this command answers in the chats of the pages. Reminders, tasks"
    " and nights wait for `wintermute run`. Ctrl-C ends it."
)
OFF = "the daemon serves no pages: set web.enabled to true in config.yaml, and restart the daemon"
IGNORED = "Wintermute already runs with this data folder, so --host and --port have no effect"
CLOSED = "web.enabled is true, but the daemon serves no pages"

host_option = click.option("--host", metavar="ADDRESS", help="Address to listen on.")
port_option = click.option(
    "--port", type=click.IntRange(1, 65535), metavar="NUMBER", help="Port to listen on."
)


@click.command("web")
@config_option
@host_option
@port_option
@click.pass_context
def command(ctx: click.Context, host: str | None, port: int | None) -> None:
    """Print an address for logging in to the web pages.

    A running daemon serves them if web.enabled is true. Without a daemon this command serves them
    until Ctrl-C, on --host and --port or as configured.

    Example: wintermute web --port 8080
    """
    _web(ctx, host, port)


@click.command("web")
@store_option
@config_option
@host_option
@port_option
@click.pass_context
def wiki(ctx: click.Context, store: Path | None, host: str | None, port: int | None) -> None:
    """Read and edit the pages in the browser.

    With another store than the configured one only its pages and conversations are served, until
    Ctrl-C, also beside a daemon.

    Example: wintermute wiki web --store ~/wiki --port 8080
    """
    settings = settings_of(ctx, store)
    config = _config(ctx, host, port)
    if settings.store.resolve() == config.wiki_store.resolve():
        _web(ctx, host, port)
        return

    async def serve() -> None:
        invite, leaving = _inviting(config), _leaving()
        with open_listener(config.web.host, config.web.port, "--") as listener:
            async with opened_stores(config, settings) as opened:
                await serve_store(config, settings, opened, listener, invite, leaving)

    with ungrouped():
        asyncio.run(serve())


def _web(ctx: click.Context, host: str | None, port: int | None) -> None:
    config = _config(ctx, host, port)
    is_chosen, is_beside = (host, port) != (None, None), holder(config.data_dir) is not None
    if is_chosen and is_beside:
        _warn(IGNORED)
    work = _beside(config) if is_beside else _alone(config, "--" if is_chosen else "web.")
    with ungrouped():
        asyncio.run(work)


def _config(ctx: click.Context, host: str | None, port: int | None) -> Config:
    config = open_config(ctx, level="warning", spared="matrix")
    web = config.web
    if host is not None or port is not None:
        given = host or web.host, port or web.port
        web = dataclasses.replace(web, host=given[0], port=given[1], public_url=None)
    return dataclasses.replace(config, web=web)


async def _beside(config: Config) -> None:
    """Ask the running daemon for a login address."""
    clock = SystemClock()
    async with open_database(config.data_dir / "wintermute.db") as database:
        door = DoorStore(database, clock)
        address = await door.address()
        if address is None:
            part = await Health(database, clock).part(PART)
            raise WintermuteError(
                f"{CLOSED}: {part.detail}" if config.web.enabled and part else OFF
            )
        _invite(address, await door.invite())


async def _alone(config: Config, setting: str) -> None:
    with open_listener(config.web.host, config.web.port, setting) as listener:
        click.echo(ALONE)
        await serve_alone(config, listener, _warn, _inviting(config), _leaving())


def _inviting(config: Config) -> Callable[[str], None]:
    if config.web.is_exposed:
        _warn(EXPOSED.format(host=config.web.host))
    return partial(_invite, address_of(config.web))


def _invite(address: str, key: str) -> None:
    click.echo(f"Wintermute serves its pages at {address}")
    click.echo(f"Log in here (works once, within ten minutes): {address}/login/{key}")


def _warn(line: str) -> None:
    click.echo(f"wintermute: {line}", err=True)


def _leaving() -> asyncio.Event:
    """Return an event that SIGTERM and Ctrl-C set."""
    leaving, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leaving.set)
    return leaving
