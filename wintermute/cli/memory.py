"""`wintermute memory`: what is remembered, also beside a running daemon."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import BinaryIO
from zoneinfo import ZoneInfo

import click

from wintermute.changes.change_sets import KEPT, Reason
from wintermute.cli.history import history_command, undo_command
from wintermute.cli.opening import Report, on_stores, scope_of, scope_option, tell, with_stores
from wintermute.cli.options import config_option, reporting, write_whole
from wintermute.clock import stamp
from wintermute.commands.forgetting import Forgotten, forget
from wintermute.commands.tasks import fact_line
from wintermute.config.schema import Config
from wintermute.errors import WintermuteError
from wintermute.memory.exchange import Import, Imported, exported
from wintermute.memory.fact import EXPLICIT, SOURCES, AddOutcome, Fact, Source
from wintermute.stores import Stores

SAID: dict[AddOutcome, str] = {
    "stored": "stored",
    "known": "known already",
    "raised": "known already, now as said by the person",
}
whose = scope_option("Whose memories; default: the owner's.")


@click.group("memory")
def command() -> None:
    """What is remembered: show, change, forget.

    Example: wintermute memory list
    """


@command.command("list")
@whose
@click.option("--everyone", is_flag=True, help="Those of all people and rooms.")
@reporting
def list_(ctx: click.Context, scope: str | None, everyone: bool, as_json: bool) -> None:
    """Show the memories of the owner, or of another person or room.

    Example: wintermute memory list --scope person:@ann:example.org
    """

    async def work(stores: Stores, _: Config) -> list[str]:
        zone = stores.tasks.zone
        chosen = await _chosen(stores, scope, everyone)
        if as_json:
            return await exported(stores.facts, chosen)
        lines = []
        for name in chosen:
            lines += [f"{name}:"] if everyone else []
            lines += [fact_line(fact, zone) for fact in await stores.facts.live(name)]
        return lines

    lines = with_stores(ctx, work)
    values = [json.loads(line) for line in lines] if as_json else None
    tell(ctx, values, *(lines or ["Nothing is remembered."]), as_json=as_json)


@command.command("add")
@click.argument("text")
@whose
@click.option(
    "--source",
    type=click.Choice(SOURCES),
    default=EXPLICIT,
    show_default=True,
    help="How it was learnt.",
)
@on_stores
async def add(stores: Stores, text: str, scope: str | None, source: Source) -> Report:
    """Remember one thing.

    Example: wintermute memory add "Anna moved to Lyon in March 2026."
    """
    place = await scope_of(stores, scope or stores.owner.scope)
    await stores.memories.text(place)
    async with stores.database.transaction() as tx:
        why = Reason("command", place)
        fact, outcome = await stores.facts.add(tx, why, text, source, scope=place)
    await stores.memories.text(place)
    values = {"outcome": outcome, "id": fact.id, "text": fact.text, "source": fact.source}
    return Report(values, [f"{SAID[outcome]}  {fact.id}  {fact.text}"])


@command.command("show")
@click.argument("fact_id", metavar="ID")
@on_stores
async def show(stores: Stores, fact_id: str) -> Report:
    """Show one memory and where it comes from.

    Example: wintermute memory show fact_0123456789abcdef
    """
    [fact] = await _facts(stores, [fact_id])
    values = {
        "id": fact.id,
        "text": fact.text,
        "scope": fact.scope,
        "source": fact.source,
        "speaker": fact.speaker,
        "at": stamp(fact.created_at),
        "valid_from": stamp(fact.valid_from),
        "valid_to": stamp(fact.valid_to) if fact.valid_to else None,
        "replaced_by": fact.replaced_by,
        "origins": list(fact.origins),
    }
    shown = {**values, "origins": ", ".join(fact.origins)}
    return Report(values, [f"{name}: {value}" for name, value in shown.items() if value])


@command.command("forget")
@click.argument("fact_ids", metavar="[ID]...", nargs=-1)
@reporting
def forget_(ctx: click.Context, fact_ids: tuple[str, ...], as_json: bool) -> None:
    """Erase memories for good, with the messages they were learnt from.

    Also erased are their earlier wordings and whatever else in a conversation repeats them. There is
    no way back; to take a change back use `undo`. Without an ID only the free space of the database
    is cleared.

    Example: wintermute memory forget fact_0123456789abcdef
    """

    async def work(stores: Stores, _: Config) -> tuple[Forgotten, ZoneInfo]:
        return await forget(stores, await _facts(stores, fact_ids)), stores.tasks.zone

    done, zone = with_stores(ctx, work)
    copies = [{"file": str(copy.path), "until": stamp(copy.made_at + KEPT)} for copy in done.copies]
    values = {**dataclasses.asdict(done), "copies": copies}
    tell(ctx, values, *_forgotten_lines(done, zone), as_json=as_json)
    if done.unfinished:
        raise WintermuteError(
            f"not finished: {done.unfinished} messages about it are still to be answered or sent;"
            " when they are, run this again"
        )
    if not done.scrubbed:
        raise WintermuteError(
            "the database is in use and may hold traces: run `wintermute memory forget` without ID"
        )


def _forgotten_lines(done: Forgotten, zone: ZoneInfo) -> Iterator[str]:
    yield f"forgotten: {done.facts}; erased in {done.records} messages, answers and prompts"
    for fact_id in done.short:
        yield f"{fact_id} is short: erased only where it was learnt or shown, look for other places"
    if done.quoted:
        yield f"still says it, change or forget it there: {', '.join(done.quoted)}"
    for copy in done.copies:
        made, until = (at.astimezone(zone).date() for at in (copy.made_at, copy.made_at + KEPT))
        yield (
            f"a copy from before the upgrade of {made} may still hold it until {until}: "
            f"delete {copy.path} to end it now"
        )


@command.command("export")
@click.argument("file", type=click.Path(dir_okay=False), default="-")
@whose
@config_option
@click.pass_context
def export(ctx: click.Context, file: str, scope: str | None) -> None:
    """Write all memories, or those of one scope, as lines of JSON.

    Example: wintermute memory export memories.jsonl
    """

    async def work(stores: Stores, _: Config) -> list[str]:
        return await exported(stores.facts, await _chosen(stores, scope, scope is None))

    write_whole(file, "".join(f"{line}\n" for line in with_stores(ctx, work)).encode())


@command.command("import")
@click.argument("file", type=click.File("rb"))
@reporting
def import_(ctx: click.Context, file: BinaryIO, as_json: bool) -> None:
    """Read memories from lines of JSON, as `export` writes them.

    Only "text" is needed; "id", "at", "speaker", "scope" and "source" are kept. Reading the same
    file again adds nothing.

    Example: wintermute memory import memories.jsonl
    """

    async def work(stores: Stores, _: Config) -> Imported:
        reading = Import(
            stores.database,
            stores.facts,
            stores.changes,
            stores.owner.scope,
            stores.tasks.zone,
            (await stores.known.moves()).named,
        )
        done = await reading.run(file, Reason("import", "everyone"))
        for scope in sorted(done.scopes):
            await stores.memories.text(scope)
        return done

    done = with_stores(ctx, work)
    said = f"stored {done.stored}, raised {done.raised}, known already {done.known}"
    counts = {"stored": done.stored, "raised": done.raised, "known": done.known}
    bad = [{"line": number, "problem": problem} for number, problem in done.problems]
    tell(ctx, {**counts, "problems": bad, "set": done.set_id}, said, as_json=as_json)
    for number, problem in done.problems:
        click.echo(f"line {number}: {problem}", err=True)
    ctx.exit(1 if done.problems else 0)


command.add_command(undo_command("fact"))
command.add_command(history_command("fact"))


async def _chosen(stores: Stores, scope: str | None, everyone: bool) -> list[str]:
    """The scopes that are meant, with what was edited by hand in their files."""
    one = await scope_of(stores, scope or stores.owner.scope)
    chosen = await stores.facts.scopes() if everyone else [one]
    for name in chosen:
        await stores.memories.text(name)
    return chosen


async def _facts(stores: Stores, ids: Sequence[str]) -> list[Fact]:
    names = dict.fromkeys(name.strip().removeprefix("#") for name in ids)
    found = [(fact_id, await stores.facts.get(fact_id)) for fact_id in names]
    missing = [fact_id for fact_id, fact in found if fact is None]
    if missing:
        raise WintermuteError(f"no memory {', '.join(missing)}: `wintermute memory list` shows ids")
    return [fact for _, fact in found if fact]
