"""`wintermute status`: what the database says, also beside a running daemon."""

import asyncio
from pathlib import Path

import click

from wintermute.cli import check
from wintermute.cli.check import show
from wintermute.cli.opening import open_config
from wintermute.cli.options import reporting
from wintermute.clock import SystemClock
from wintermute.config.lock import holder
from wintermute.config.schema import Config
from wintermute.db import open_database
from wintermute.health.health import Finding, gather
from wintermute.memory.core import Places
from wintermute.prompt.edited import unusable_files


@click.command("status")
@reporting
def command(ctx: click.Context, as_json: bool) -> None:
    """Show what works and what does not.

    Leaves with 1 when something fails.

    Example: wintermute status --json
    """
    config = open_config(ctx)
    show(ctx, asyncio.run(_facts(config)), as_json=as_json)


async def _facts(config: Config) -> list[Finding]:
    """What nobody could store, then what the daemon did."""
    path = config.data_dir / "wintermute.db"
    async with open_database(path, read_only=True) as opened:
        stored = await gather(opened, SystemClock(), config.timezone, config.llm.budget)
    database = await check.database(path)
    here = [_daemon(config.data_dir), check.disk(config.data_dir)]
    here += [database] if database.state == "fail" else []
    places = Places(config.data_dir, config.owner)
    return [*here, *stored, *unusable_files(places, config.data_dir / "prompts")]


def _daemon(data_dir: Path) -> Finding:
    pid = holder(data_dir)
    if pid is None:
        return Finding("daemon", "warn", "not running -> start it with `wintermute run`")
    return Finding("daemon", "ok", f"running, process {pid or 'unknown'}")
