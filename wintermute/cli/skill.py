"""`wintermute skill`: the assistant's procedures, also beside a running daemon."""

from dataclasses import asdict
from typing import BinaryIO

import click

from wintermute.changes.change_sets import Reason
from wintermute.cli.opening import tell, with_stores
from wintermute.cli.options import config_option, json_option
from wintermute.config.schema import Config
from wintermute.errors import WintermuteError
from wintermute.skills.skills import Skill
from wintermute.stores import Stores


@click.group("skill")
def command() -> None:
    """How something is done: procedures.

    Example: wintermute skill list
    """


@command.command("list")
@config_option
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """Show all skills.

    Example: wintermute skill list
    """

    async def work(stores: Stores, _: Config) -> tuple[Skill, ...]:
        return await stores.skills.listed()

    skills = with_stores(ctx, work)
    lines = [f"{skill.name}: {skill.summary}" for skill in skills] or ["There is no skill."]
    tell(ctx, [asdict(skill) for skill in skills], *lines, as_json=as_json)


@command.command("show")
@click.argument("name")
@config_option
@json_option
@click.pass_context
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Print a skill.

    Example: wintermute skill show calendar
    """

    async def work(stores: Stores, _: Config) -> str:
        return await stores.skills.read(name)

    text = with_stores(ctx, work)
    tell(ctx, {"name": name, "text": text}, text.rstrip("\n"), as_json=as_json)


@command.command("add")
@click.argument("name")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--summary", required=True, help="One line: when to use it.")
@config_option
@json_option
@click.pass_context
def add(ctx: click.Context, name: str, file: BinaryIO, summary: str, as_json: bool) -> None:
    """Add or replace a skill with the text of FILE, or of standard input.

    Example: wintermute skill add calendar calendar.md --summary "Google Calendar events"
    """
    try:
        text = file.read().decode()
    except UnicodeDecodeError as error:
        raise WintermuteError(f"{file.name} is not text in UTF-8: save it as such") from error

    async def work(stores: Stores, _: Config) -> bool:
        why = Reason("command", stores.owner.scope)
        return await stores.skills.write(why, name, summary, text)

    done = "added" if with_stores(ctx, work) else "replaced"
    _changed(ctx, name, done, f"{done}  data/skills/{name}.md", as_json)


@command.command("remove")
@click.argument("name")
@config_option
@json_option
@click.pass_context
def remove(ctx: click.Context, name: str, as_json: bool) -> None:
    """Remove a skill; `restore` brings it back for 30 days.

    Example: wintermute skill remove calendar
    """

    async def work(stores: Stores, _: Config) -> None:
        await stores.skills.remove(Reason("command", stores.owner.scope), name)

    with_stores(ctx, work)
    _changed(ctx, name, "removed", f"removed  data/skills/{name}.md", as_json)


@command.command("restore")
@click.argument("name")
@config_option
@json_option
@click.pass_context
def restore(ctx: click.Context, name: str, as_json: bool) -> None:
    """Bring back the text a skill had before its last change.

    Example: wintermute skill restore calendar
    """

    async def work(stores: Stores, _: Config) -> str:
        return await stores.skills.restore(name)

    _changed(ctx, name, "restored", with_stores(ctx, work), as_json)


def _changed(ctx: click.Context, name: str, outcome: str, line: str, as_json: bool) -> None:
    tell(ctx, {"name": name, "outcome": outcome}, line, as_json=as_json)
