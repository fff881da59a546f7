"""`wintermute memory`: memories, also beside a running daemon."""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import BinaryIO
from zoneinfo import ZoneInfo

import click

from wintermute.changes.change_sets import Reason
from wintermute.cli.history import history_command, undo_command
from wintermute.cli.memory_search import (
    bad_line,
    fact_of_id,
    fact_values,
    facts_of_ids,
    latest,
    moment_option,
    rebuild_index,
    search,
    stats,
    why,
)
from wintermute.cli.opening import (
    Report,
    on_stores,
    scope_of,
    scope_option,
    with_models,
    with_stores,
)
from wintermute.cli.options import config_option, redacted, reporting, tell, write_whole
from wintermute.clock import SystemClock
from wintermute.commands.memories import fact_line
from wintermute.config.schema import Config
from wintermute.errors import ModelError, WintermuteError
from wintermute.forgetting.forget_jobs import forget_at_once
from wintermute.forgetting.forgetting import Forgotten
from wintermute.learning.reconstruction import CORE, BatchCounts, Reconstruction, normalised
from wintermute.learning.splitting import MOST_TEXT, Splitting, harmless_paragraphs, new_facts
from wintermute.llm.background import BackgroundModels
from wintermute.llm.models import Models
from wintermute.memory.exchange import (
    Import,
    ImportResult,
    as_line,
    exported,
    lines_of_file,
    moment_of,
    of_list,
)
from wintermute.memory.fact import EXPLICIT, SOURCES, AddOutcome, NewFact, Source
from wintermute.secret_shapes import REFUSED, secret_kind
from wintermute.stores import Stores
from wintermute.templates import Template
from wintermute.text import EMPTY_AT_SHELL

OUTCOMES: dict[AddOutcome, str] = {
    "stored": "stored",
    "known": "known already",
    "raised": "known already, now as said by the person",
    "ended": "known already, now with an end",
}
AT_REST = "{n} not used for long: `wintermute memory search` finds them."
COUNTED = ("stored", "raised", "ended", "known", "skipped", "left_out")
whose = scope_option("A person or room, as in person:@ann:example.org; default: the owner.")


@click.group("memory")
def command() -> None:
    """Show, change and forget memories.

    Example: wintermute memory list
    """


@command.command("list")
@whose
@click.option("--everyone", is_flag=True, help="Show the memories of all people and rooms.")
@on_stores
async def list_(stores: Stores, scope: str | None, everyone: bool) -> Report:
    """Show the memories of a person or room.

    Example: wintermute memory list --scope person:@ann:example.org
    """
    zone, values, lines = stores.tasks.zone, [], []
    for name in await _chosen(stores, scope, everyone):
        live = await stores.facts.live(name)
        facts = [fact for fact in live if not fact.archived]
        values += [as_line(fact) for fact in facts]
        lines += [f"{name}:"] if everyone and facts else []
        lines += [fact_line(fact, zone) for fact in facts]
        resting = len(live) - len(facts)
        lines += [AT_REST.format(n=resting)] if resting else []
    return Report(values, lines or [EMPTY_AT_SHELL["memories"]])


@command.command("add")
@click.argument("text")
@whose
@click.option(
    "--source",
    type=click.Choice(SOURCES),
    default=EXPLICIT,
    show_default=True,
    help="How Wintermute learned it.",
)
@moment_option("--until", "The day or time from which it is no longer true.")
@reporting
def add(
    ctx: click.Context,
    as_json: bool,
    text: str,
    scope: str | None,
    source: Source,
    until: str | None,
) -> None:
    """Remember one thing, or split a long text.

    With - as TEXT, it reads a long text from standard input and splits it into memories.

    With --until, the memory is kept as no longer true: `search --when` and `/memory WORDS` find it.

    Example: wintermute memory add "Anna lives in Lyon." --until 2026-05-01
    """
    if text == "-":
        _tell_split(ctx, sys.stdin.buffer, scope, source, until, as_json=as_json)
        return
    report = with_stores(ctx, lambda stores, _: _added(stores, text, scope, source, until))
    tell(ctx, report.values, *report.lines, as_json=as_json)


def _tell_split(
    ctx: click.Context,
    file: BinaryIO,
    scope: str | None,
    source: Source = EXPLICIT,
    until: str | None = None,
    *,
    as_json: bool,
) -> None:
    """Split a long text, and print the memories stored and those left out."""
    text = "\n".join(file.read(4 * MOST_TEXT + 1).decode("utf-8-sig", "replace").splitlines())
    if len(text) > MOST_TEXT:
        raise WintermuteError(
            f"the text is too long: at most {MOST_TEXT:,} characters can be split at once. Make"
            " several files of it, and import one after another"
        )
    text, secrets = harmless_paragraphs(text)
    refused: list[tuple[int | None, str]] = [*secrets]
    lines: list[str] = []

    async def work(stores: Stores, _: Config, models: Models) -> Report:
        end = moment_of(until, stores.tasks.zone) if until else None
        place = await scope_of(stores, scope)
        split = Splitting(BackgroundModels(models), Template(stores.prompts, "SPLIT_PROMPT.txt"))
        like, new, why = NewFact(place, "", source, valid_to=end), 0, Reason("import", place)
        async for part in split.split_or_whole(text):
            facts = new_facts(like, normalised([*part.contents, *part.rest]))
            async with stores.database.transaction() as tx:
                taken = await stores.facts.take(tx, facts)
                if changes := [each.change for each in taken if each.change]:
                    why = replace(why, into=await stores.changes.record(tx, why, changes))
            new += len(changes)
            gone = [each.fact.text for each in taken if each.outcome == "refused"]
            refused.extend((None, str(secret_kind(text))) for text in gone)
            lines.extend(fact.text for fact in facts if fact.text not in gone)
        await stores.memories.text(place)
        skipped = [{"line": line, "kind": kind} for line, kind in refused]
        values = {"contents": lines, "stored": new, "refused": skipped, "set": why.into}
        return Report(values, [*lines, f"stored {new}, known already {len(lines) - new}"])

    report = with_models(ctx, work)
    for line, kind in refused:
        where = "a part of the text" if line is None else f"line {line}: the paragraph"
        click.echo(f"{where} is {REFUSED.format(kind=kind)}", err=True)
    tell(ctx, report.values, *report.lines, as_json=as_json)
    if refused and ctx.info_name == "add":  # an import skips and counts it (M-098)
        ctx.exit(1)


async def _added(
    stores: Stores, text: str, scope: str | None, source: Source, until: str | None
) -> Report:
    end = moment_of(until, stores.tasks.zone) if until else None
    place = await scope_of(stores, scope)
    await stores.memories.text(place)
    async with stores.database.transaction() as tx:
        reason = Reason("command", place)
        fact, outcome = await stores.facts.add(tx, reason, text, source, scope=place, until=end)
    await stores.memories.text(place)
    values = {"outcome": outcome, "id": fact.id, "text": fact.text, "source": fact.source}
    return Report(values, [f"{OUTCOMES[outcome]}  {fact.id}  {fact.text}"])


@command.command("show")
@click.argument("fact_id", metavar="ID")
@on_stores
async def show(stores: Stores, fact_id: str) -> Report:
    """Show one memory and where it comes from.

    Example: wintermute memory show fact_0123456789abcdef
    """
    values = fact_values(await fact_of_id(stores, fact_id))
    shown = {**values, "origins": ", ".join(values["origins"])}
    return Report(values, [f"{name}: {value}" for name, value in shown.items() if value])


@command.command("forget")
@click.argument("fact_ids", metavar="[ID]...", nargs=-1)
@reporting
def forget_(ctx: click.Context, fact_ids: tuple[str, ...], as_json: bool) -> None:
    """Erase memories for good, with the messages they came from.

    This cannot be undone. It also erases their earlier versions and every copy in the same chat.
    Without an ID it only clears the free space of the database.

    Example: wintermute memory forget fact_0123456789abcdef
    """

    async def work(stores: Stores, _: Config) -> tuple[Forgotten, ZoneInfo]:
        facts = await facts_of_ids(stores, fact_ids)
        return await forget_at_once(stores, facts, SystemClock()), stores.tasks.zone

    done, zone = with_stores(ctx, work)
    copies = [{"file": str(copy.path), "until": copy.until} for copy in done.copies]
    values = {**asdict(done), "copies": copies}
    tell(ctx, values, *_forgotten_lines(done, zone), as_json=as_json)
    if done.unfinished:
        raise WintermuteError(
            f"not finished: {done.unfinished} messages about it still wait to be answered or"
            " sent. The daemon goes on after that, and `wintermute status --all` shows what is left"
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
        made, until = (at.astimezone(zone).date() for at in (copy.made_at, copy.until))
        yield (
            f"a copy from before the upgrade of {made} may still hold it until {until}: "
            f"delete {copy.path} to end it now"
        )


@command.command("export")
@click.argument("file", type=click.Path(dir_okay=False), default="-")
@scope_option("A person or room, as in person:@ann:example.org; default: everybody.")
@config_option
@click.pass_context
def export(ctx: click.Context, file: str, scope: str | None) -> None:
    """Export memories as lines of JSON.

    It replaces an earlier export, but no other file.

    Example: wintermute memory export memories.jsonl
    """

    async def work(stores: Stores, _: Config) -> list[str]:
        return await exported(stores.facts, await _chosen(stores, scope, scope is None))

    found = with_stores(ctx, work)
    if not _is_export(Path(file)):
        raise WintermuteError(
            f"{file} exists and is no export, so nothing was written: name another file"
        )
    write_whole(file, "".join(f"{line}\n" for line in found).encode())


@command.command("import")
@click.argument("file", type=click.File("rb"))
@scope_option("Person or room for lines that name none; default: the owner.")
@click.option("--split", is_flag=True, help="The file is one long text: split it into memories.")
@reporting
def import_(
    ctx: click.Context, file: BinaryIO, scope: str | None, split: bool, as_json: bool
) -> None:
    """Import memories from an export or a list.

    An export has lines of JSON. A file called .txt is a list, with a memory on each line. Of JSON, only "text" is needed; "id",
    "at", "speaker", "scope" and "source" are kept. Importing the same file again adds nothing.
    Lines without a word, and lines that look like a password or key, are left out and counted.

    Example: wintermute memory import memories.jsonl
    """
    if split:
        _tell_split(ctx, file, scope, as_json=as_json)
        return

    async def work(stores: Stores, _: Config) -> ImportResult:
        reading = Import(
            stores.database,
            stores.facts,
            stores.changes,
            await scope_of(stores, scope),
            stores.tasks.zone,
            (await stores.known.moves()).canonical_scope,
        )
        lines: Iterable[str | bytes] = lines_of_file(file)
        if file.name.lower().endswith(".txt"):
            lines = of_list(lines_of_file(file))
        done = await reading.store_lines(
            lines, Reason("import", "everyone"), told=bad_line, read=progress
        )
        for each in sorted(done.scopes):
            await stores.memories.text(each)
        return done

    done = with_stores(ctx, work)
    if sys.stderr.isatty():
        click.echo(err=True)
    said = f"stored {done.stored}, raised {done.raised}, known already {done.known}"
    said += f", given an end {done.ended}" if done.ended else ""
    said += f", skipped without a word {done.skipped}" if done.skipped else ""
    said += f", left out as they look like secrets {done.left_out}" if done.left_out else ""
    counts = {name: getattr(done, name) for name in COUNTED}
    bad = [{"line": number, "problem": problem} for number, problem in done.problems]
    tell(ctx, {**counts, "problems": bad, "set": done.set_id}, said, as_json=as_json)
    ctx.exit(1 if done.bad else 0)


@command.command("reconstruct")
@reporting
def reconstruct(ctx: click.Context, as_json: bool) -> None:
    """Merge new memories with older ones now.

    The daemon does this by itself, after 20 new memories or 15 minutes without one. It may then
    change core.md as well, which this command never does.

    Example: wintermute memory reconstruct
    """

    async def work(stores: Stores, config: Config, models: Models) -> tuple[BatchCounts, bool]:
        template = Template(stores.prompts, "RECONSTRUCTION_PROMPT.txt")
        queue = Reconstruction(stores, BackgroundModels(models), template, config.memory)
        done = BatchCounts()
        queues = await stores.facts.queues(stores.database)
        for waiting in queues:
            try:
                done += await queue.empty_queue(waiting.scope, taint=waiting.taint)
            except ModelError as problem:
                click.echo(redacted(ctx, f"{waiting.scope}: {problem}"), err=True)
                done += BatchCounts(failed=1)
            await stores.memories.text(waiting.scope)
        async with stores.database.transaction() as tx:
            pending = [await stores.jobs.is_pending(tx, CORE, queue.scope) for queue in queues]
        return done, any(pending)

    done, core_waits = with_models(ctx, work)
    said = [
        f"batches {done.batches}, kept {done.kept}, replaced {done.replaced}, failed {done.failed}"
    ]
    said += ["core.md: the daemon looks at the new memories while it runs"] * core_waits
    values = asdict(done) | ({"core": "daemon"} if core_waits else {})
    tell(ctx, values, *said, as_json=as_json)
    ctx.exit(1 if done.failed else 0)


for verb in (search, latest, stats, why, rebuild_index):
    command.add_command(verb)
command.add_command(undo_command("fact"))
command.add_command(history_command("fact"))


def _is_export(path: Path) -> bool:
    """Return True if the file may be replaced: an earlier export, an empty file, or none."""
    if not path.is_file():
        return True  # none, a pipe or a device
    try:
        with path.open("rb") as file:
            first = file.readline(1_000_000)
        return not first or "text" in json.loads(first)
    except (OSError, ValueError, TypeError):
        return False


async def _chosen(stores: Stores, scope: str | None, everyone: bool) -> list[str]:
    """Return the chosen scopes, after taking in edits of their files."""
    one = await scope_of(stores, scope)
    chosen = await stores.facts.scopes() if everyone else [one]
    for name in chosen:
        await stores.memories.text(name)
    return chosen


def progress(lines: int) -> None:
    """Show the progress of an import on one line of a terminal."""
    if sys.stderr.isatty():
        click.echo(f"\r{lines:,} lines", err=True, nl=False)
