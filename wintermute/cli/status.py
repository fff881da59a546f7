"""`wintermute status`: the state of all parts, also beside a running daemon."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from zoneinfo import ZoneInfo

import click

from wintermute.changes.decisions import LINES, Decisions
from wintermute.cli import check
from wintermute.cli.check import show
from wintermute.cli.opening import open_config
from wintermute.cli.options import reporting
from wintermute.clock import SystemClock
from wintermute.config.lock import holder
from wintermute.config.schema import Config
from wintermute.db import Database, open_database
from wintermute.errors import ConfigurationError
from wintermute.health.health import WELL, StatusLine, only_problems, status_lines
from wintermute.ids import new_id
from wintermute.llm.embeddings import open_embedder
from wintermute.llm.models import Models
from wintermute.memory.core import Places
from wintermute.memory.status import NAME, with_memory
from wintermute.night.night_status import night_status
from wintermute.prompt.file_checks import unusable_files
from wintermute.stores import Stores
from wintermute.web.door import PART as WEB
from wintermute.wiki.store import WikiStore
from wintermute.wiki.wiki_status import wiki_status


@click.command("status")
@click.option("--all", "in_full", is_flag=True, help="Show every part, also those that are well.")
@reporting
def command(ctx: click.Context, in_full: bool, as_json: bool) -> None:
    """Show what does not work, and what to do about it.

    The exit code is 1 if something fails.

    Example: wintermute status --all
    """
    config = open_config(ctx, spared="matrix")
    facts = asyncio.run(_facts(config))
    shown = facts if in_full or as_json else only_problems(facts)
    if not shown:
        click.echo(WELL.format("`wintermute status --all`"))
    else:
        show(ctx, shown, as_json=as_json)


async def _facts(config: Config) -> list[StatusLine]:
    """Return the lines about this machine, then those from the database."""
    path = config.data_dir / "wintermute.db"
    async with open_database(path, read_only=True) as opened:
        stored = await status_lines(opened, SystemClock(), config.timezone, config.llm.budget)
        stored = with_memory(stored, await _memory(config, opened))
        asked = await _questions(opened)
        nights = await night_status(
            opened, SystemClock(), config.dreaming, ZoneInfo(config.timezone), config.data_dir
        )
    database = await check.database(path)
    here = [_daemon(config.data_dir), check.disk(config.data_dir)]
    here += [database] if database.state != "ok" else []
    here += [*check.login_files(config), *asked]
    if not any(fact.name == WEB and fact.state == "fail" for fact in stored):
        here += [fact for fact in check.web_door(config) if fact.state == "fail"]
    places = Places(config.data_dir, config.owner)
    wiki = wiki_status(WikiStore(config.wiki_store), ZoneInfo(config.timezone))
    return [*here, *stored, wiki, nights, *unusable_files(places, config.data_dir / "prompts")]


async def _questions(database: Database) -> list[StatusLine]:
    """Report memories whose lines disappeared from their file all at once (M-090)."""
    waiting = await Decisions(database, SystemClock()).waiting(None, LINES)
    problem = "memories kept although their lines were removed all at once -> `/night` asks if they may go"
    return [StatusLine("memories file", "warn", f"{len(waiting)} times {problem}")] * bool(waiting)


async def _memory(config: Config, database: Database) -> StatusLine:
    """Return the state of the memory search."""
    clock, zone = SystemClock(), config.timezone
    async with aclosing(Models(config.llm, database, clock, new_id, zone)) as models:
        try:
            embedder = open_embedder(config.memory, models, clock)
        except ConfigurationError as problem:
            return StatusLine(NAME, "fail", str(problem))
        shared = (database, config.data_dir, config.owner, clock, new_id)
        stores = Stores.of(*shared, timezone=zone, memory=config.memory, embedder=embedder)
        return await stores.memory_status.finding()


def _daemon(data_dir: Path) -> StatusLine:
    pid = holder(data_dir)
    if pid is None:
        return StatusLine("daemon", "warn", "not running -> start it with `wintermute run`")
    return StatusLine("daemon", "ok", f"running, process {pid or 'unknown'}")
