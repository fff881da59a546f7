"""The stores of the configured data folder, for commands that work with or without a daemon."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import click

from wintermute.cli.opening import open_config
from wintermute.cli.options import redacted
from wintermute.clock import SystemClock
from wintermute.commands.stores import Stores
from wintermute.config.schema import Config
from wintermute.db import open_database
from wintermute.errors import ConfigurationError
from wintermute.ids import new_id
from wintermute.memory.exchange import SCOPE

Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., Any])


def with_stores(ctx: click.Context, work: Callable[[Stores, Config], Awaitable[Result]]) -> Result:
    """Open the configuration and its stores, do the work, close them."""
    config = open_config(ctx)

    async def opened() -> Result:
        async with _stores(config) as stores:
            return await work(stores, config)

    return asyncio.run(opened())


def say(ctx: click.Context, *lines: str) -> None:
    """Print lines without the secrets of the configuration."""
    for line in lines:
        click.echo(redacted(ctx, line))


def tell(ctx: click.Context, values: Any, *lines: str, as_json: bool) -> None:
    """Print values as JSON for a program, or lines for a person."""
    say(ctx, *([json.dumps(values, indent=2, ensure_ascii=False)] if as_json else lines))


def scope_option(text: str, *also: str) -> Callable[[Command], Command]:
    """`--scope`, checked for how it is written; what it names need not exist yet."""

    def checked(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
        if value is None or value in also or SCOPE.fullmatch(value):
            return value
        raise click.BadParameter(" or ".join(["write person:@name:server", "room:!id", *also]))

    return click.option("--scope", callback=checked, help=text)


async def scope_of(stores: Stores, named: str) -> str:
    """The scope that somebody means: a room's may be called by any room it has lived in (F-013)."""
    return (await stores.known.moves()).named(named)


@asynccontextmanager
async def _stores(config: Config) -> AsyncIterator[Stores]:
    if not config.data_dir.is_dir():
        raise ConfigurationError(
            f"the data folder {config.data_dir} does not exist: make it with `wintermute init DIR`,"
            " or correct data_dir"
        )
    async with open_database(config.data_dir / "wintermute.db") as database:
        owner, clock = config.matrix.owner, SystemClock()
        yield Stores(database, config.data_dir, owner, clock, new_id, timezone=config.timezone)
