"""`wintermute skill`: the assistant's procedures, also beside a running daemon."""

import asyncio
from typing import BinaryIO

import click

from wintermute.changes.change_sets import Reason
from wintermute.cli.opening import Report, on_stores, with_stores
from wintermute.cli.options import reporting, tell
from wintermute.config.schema import Config
from wintermute.errors import WintermuteError
from wintermute.forgetting.forget_jobs import refuse_meanwhile
from wintermute.prompt.file_checks import unusable_skills
from wintermute.skills.skills import IN_FOLDER
from wintermute.stores import Stores
from wintermute.text import EMPTY_AT_SHELL


@click.group("skill")
def command() -> None:
    """Show and change skills: procedures for the assistant.

    Example: wintermute skill list
    """


@command.command("list")
@on_stores
async def list_(stores: Stores) -> Report:
    """Show all skills.

    Example: wintermute skill list
    """
    skills = await stores.skills.listed()
    problems = await asyncio.to_thread(unusable_skills, stores.places)
    values = [*skills, *({"name": name, "problem": text} for name, text in problems.items())]
    lines = [f"{each.name.removesuffix(IN_FOLDER)}: {each.summary}" for each in skills]
    return Report(values, [*lines, *problems.values()] or [EMPTY_AT_SHELL["skills"]])


@command.command("show")
@click.argument("name")
@on_stores
async def show(stores: Stores, name: str) -> Report:
    """Print a skill.

    Example: wintermute skill show calendar
    """
    text = await stores.skills.read(name)
    return Report({"name": name, "text": text}, [text.rstrip("\n")])


@command.command("add")
@click.argument("name")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--summary", required=True, help="One line that says when to use it.")
@reporting
def add(ctx: click.Context, name: str, file: BinaryIO, summary: str, as_json: bool) -> None:
    """Add or replace a skill with the text of FILE or of standard input.

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
    values = {"name": name, "outcome": done}
    tell(ctx, values, f"{done}  data/skills/{name}.md", as_json=as_json)


@command.command("remove")
@click.argument("name")
@on_stores
async def remove(stores: Stores, name: str) -> Report:
    """Remove a skill; `restore` brings it back for 30 days.

    Example: wintermute skill remove calendar
    """
    await stores.skills.remove(Reason("command", stores.owner.scope), name)
    return Report({"name": name, "outcome": "removed"}, [f"removed  data/skills/{name}.md"])


@command.command("restore")
@click.argument("name")
@on_stores
async def restore(stores: Stores, name: str) -> Report:
    """Bring back the text a skill had before its last change.

    Example: wintermute skill restore calendar
    """
    await refuse_meanwhile(stores)
    return Report({"name": name, "outcome": "restored"}, [await stores.skills.restore(name)])
