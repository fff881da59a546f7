"""`wintermute loom`: what was said and done, also beside a running daemon."""

import json
import os
import platform
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from wintermute import __version__
from wintermute.cli import masks
from wintermute.cli.options import config_option, json_option, redacted
from wintermute.cli.stores import say, with_stores
from wintermute.cli.story import branch_line, story_lines
from wintermute.commands.stores import Stores
from wintermute.config.schema import Config
from wintermute.errors import WintermuteError
from wintermute.llm.trail import attempts
from wintermute.loom.reading import Reading, Spot, lines
from wintermute.mailbox.people import people
from wintermute.messages import Json

REPLAY = "replay"


class Loom(click.Group):
    """`replay` needs the whole program, which the others need not load."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), REPLAY]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != REPLAY:
            return super().get_command(ctx, cmd_name)
        command: click.Command = import_module("wintermute.cli.replay").command
        return command


@click.group("loom", cls=Loom)
def command() -> None:
    """What was said and done: read, fork, replay.

    BRANCH is the id of a branch, or that of a room: then its newest branch.

    Example: wintermute loom list
    """


@command.command("list")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many.")
@config_option
@json_option
@click.pass_context
def list_(ctx: click.Context, limit: int, as_json: bool) -> None:
    """Show the branches, newest first.

    A branch begins with a conversation, with `/new`, with an edit, with a fork, and when somebody
    comes in or leaves.

    Example: wintermute loom list --limit 5
    """

    async def work(stores: Stores, _: Config) -> list[Json]:
        return await Reading(stores.database).branches(limit)

    branches = masks.changed(with_stores(ctx, work), partial(redacted, ctx))
    _tell(
        ctx, branches, *(list(map(branch_line, branches)) or ["Nothing was said."]), as_json=as_json
    )


@command.command("show")
@click.argument("branch", metavar="BRANCH")
@config_option
@json_option
@click.pass_context
def show(ctx: click.Context, branch: str, as_json: bool) -> None:
    """Show a branch, cast by cast, with its tokens and times.

    Example: wintermute loom show branch_0123456789abcdef
    """
    story = _story(ctx, branch)
    _tell(ctx, story, *story_lines(story), as_json=as_json)


@command.command("export")
@click.argument("branch", metavar="BRANCH")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Not to stdout.")
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="All that helps to understand a problem, as one JSON file.",
)
@click.option("--without-people", is_flag=True, help="person1, room1 for ids and names.")
@click.option("--without-texts", is_flag=True, help="Only how long the texts were.")
@config_option
@click.pass_context
def export(
    ctx: click.Context,
    branch: str,
    output: Path | None,
    bundle: Path | None,
    without_people: bool,
    without_texts: bool,
) -> None:
    """Write a branch as JSON lines: one turn each, from the first one to the last.

    The turns before a fork are the first ones. Secrets of the configuration are left out in any
    case; an existing file is not overwritten.

    Example: wintermute loom export branch_0123456789abcdef --output turns.jsonl
    """
    if output and bundle:
        raise click.UsageError("either --output or --bundle: each writes one file")
    whole = with_stores(ctx, partial(_bundled, branch))
    known = whole.pop("known")
    whole = masks.changed(whole, partial(redacted, ctx))
    if without_people:
        rooms = filter(None, [whole["branch"]["room_id"]])
        whole = masks.without_people(whole, known["people"], rooms, {known["bot"]: "bot"})
    if without_texts:
        whole = masks.without_texts(whole)
    if bundle:
        _write(ctx, bundle, [json.dumps(whole, indent=1)])
        return
    written = [json.dumps(line) for line in lines(whole)]
    if output:
        _write(ctx, output, written)
    else:
        say(ctx, *written)


@command.command("fork")
@click.argument("turn", metavar="TURN")
@config_option
@json_option
@click.pass_context
def fork(ctx: click.Context, turn: str, as_json: bool) -> None:
    """Go on from a turn: a new branch with all up to it and nothing after it.

    Example: wintermute loom fork turn_0123456789abcdef
    """

    async def work(stores: Stores, _: Config) -> tuple[Spot, str]:
        async with stores.database.transaction() as tx:  # nobody comes in meanwhile
            spot = _forkable(await Reading(stores.database).spot(turn))
            branch = await stores.conversations.branch(
                tx, spot.conversation_id, "fork", forked_from=turn
            )
        return spot, branch

    spot, branch = with_stores(ctx, work)
    told = {"branch": branch, "forked_from": turn, "room": spot.room_id, "left": spot.branch_id}
    where = spot.room_id or spot.conversation_id
    _tell(
        ctx,
        told,
        f"{branch} goes on from {turn}; {spot.branch_id} stays as it is.",
        f"The next message in {where} is answered there, with all up to this turn in view.",
        as_json=as_json,
    )


def _forkable(spot: Spot) -> Spot:
    if spot.parent_turn is not None or spot.room_id is None:
        asked = f": fork {spot.parent_turn}, which asked for it" if spot.parent_turn else ""
        raise WintermuteError(f"{spot.turn_id} is in work nobody talks to{asked}")
    if spot.scope != spot.scope_now:
        raise WintermuteError(
            f"{spot.turn_id} belongs to {spot.scope}, and now {spot.scope_now} is in"
            f" {spot.room_id}, who must not see it: fork a turn since then"
        )
    return spot


def _story(ctx: click.Context, branch: str) -> Json:
    async def work(stores: Stores, _: Config) -> Json:
        reading = Reading(stores.database)
        return await reading.story(await reading.find(branch))

    story: Json = masks.changed(with_stores(ctx, work), partial(redacted, ctx))
    return story


async def _bundled(branch: str, stores: Stores, config: Config) -> Json:
    """The story of a branch with all that it refers to; under `known` the people in it."""
    reading = Reading(stores.database)
    story = await reading.story(await reading.find(branch))
    turns = [turn for cast in story["casts"] for turn in cast["turns"]]
    hashes = {turn["prompt_hash"] for turn in turns if turn["prompt_hash"]}
    return {
        "wintermute": __version__,
        "python": platform.python_version(),
        **story,
        "prompts": await reading.prompts(hashes),
        "model_calls": await attempts(stores.database, [cast["id"] for cast in story["casts"]]),
        "known": {
            "people": [
                (config.matrix.owner, ""),
                *await people(stores.database, [story["branch"]["conversation_id"]]),
            ],
            "bot": config.matrix.user_id,
        },
    }


def _write(ctx: click.Context, path: Path, texts: list[str]) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(f"{redacted(ctx, text)}\n" for text in texts)
    except FileExistsError as error:
        raise WintermuteError(f"{path} exists: name another file, or remove it") from error
    except OSError as error:
        raise WintermuteError(f"{path} cannot be written: {error.strerror}") from error


def _tell(ctx: click.Context, values: Any, *told: str, as_json: bool) -> None:
    """As `stores.tell`, with JSON that cannot do anything to a terminal."""
    say(ctx, *([json.dumps(values, indent=2)] if as_json else told))
