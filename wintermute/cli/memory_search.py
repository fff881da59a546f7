"""`wintermute memory search`, `latest`, `stats` and `why`: matches, and the sources of memories."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any, BinaryIO, TypeVar
from zoneinfo import ZoneInfo

import click

from wintermute.cli.opening import Report, on_stores, scope_of, scope_option, with_stores
from wintermute.cli.options import reporting, say, tell
from wintermute.clock import stamp
from wintermute.commands.memories import (
    MemorySource,
    Provenance,
    QuotedMessage,
    day,
    fact_line,
    provenance,
)
from wintermute.commands.tasks import brief
from wintermute.config.schema import Config
from wintermute.errors import WintermuteError
from wintermute.memory.embedding_search import EmbeddingSearch
from wintermute.memory.exchange import BatchQuestion, as_line, lines_of_file, moment_of, questions
from wintermute.memory.fact import BESIDE, Fact, FactCounts, Hit
from wintermute.memory.ranking import Query
from wintermute.messages import Json
from wintermute.stores import Stores
from wintermute.text import EMPTY_AT_SHELL, counted

whose = scope_option("A person or room, as in person:@ann:example.org; default: the owner.")
Verb = TypeVar("Verb", bound=Callable[..., Any])
START_SECONDS = 15.0
"""Seconds that a command waits for the embedder; a daemon keeps it running."""
DAY = 10
"""The length of a date without a time."""


def moment_option(name: str, text: str) -> Callable[[Verb], Verb]:
    """Add an option for a day such as 2026-05-04, or a time in ISO 8601; the value stays text."""

    def checked(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
        if value is None or moment_of(value, ZoneInfo("UTC")) is not None:
            return value
        raise click.BadParameter("write a day such as 2026-05-04, or a time: 2026-05-04T12:00")

    return click.option(name, metavar="DATE", callback=checked, help=text)


@click.command("search")
@click.argument("query", required=False)
@click.option("--batch", type=click.File("rb"), help="A file with a question on each line.")
@click.option("--k", "most", default=10, show_default=True, help="Most results for each question.")
@whose
@moment_option("--when", "Also find what was true on this day.")
@reporting
def search(
    ctx: click.Context,
    query: str | None,
    batch: BinaryIO | None,
    most: int,
    scope: str | None,
    when: str | None,
    as_json: bool,
) -> None:
    """Find the memories that the model would get.

    Without QUERY, it shows the newest ones.

    A line of a --batch file is {"id", "query", "scope"?}; each gets a line {"id", "hits"}.

    Example: wintermute memory search "where does Anna live" --when 2026-03-01
    """
    if query is not None and batch is not None:
        raise click.UsageError("give a QUERY or --batch FILE, not both")

    async def work(stores: Stores, _: Config) -> bool:
        place = await scope_of(stores, scope)
        then = _end_of(when, stores.tasks.zone) if when else None
        if stores.meaning is not None and (query or batch):
            await stores.meaning.ready(START_SECONDS)
        if query is not None or batch is not None:
            await _warn_of_missing_embeddings(stores, place)
        if batch is not None:
            return await _answer_all(ctx, stores, batch, place, most, then)
        hits = await _matches(stores, place, query, most, then)
        values = {"hits": [_hit_values(hit) for hit in hits]}
        lines = [
            f"{fact_line(hit.fact, stores.tasks.zone)}{f' ({BESIDE})' if hit.beside else ''}"
            for hit in hits
        ]
        tell(ctx, values, *(lines or [await _none(stores, place)]), as_json=as_json)
        return True

    ctx.exit(0 if with_stores(ctx, work) else 1)


async def _none(stores: Stores, scope: str) -> str:
    """Return that nothing matches, or how to add a first memory (U-013)."""
    return "Nothing fits." if await stores.facts.count(scope) else EMPTY_AT_SHELL["memories"]


async def _warn_of_missing_embeddings(stores: Stores, scope: str) -> None:
    """Warn on stderr of memories without an embedding: no daemon may be running to make it."""
    missing = (await stores.meaning.missing_counts()).get(scope, 0) if stores.meaning else 0
    if missing:
        click.echo(
            f"{counted(missing, 'embedding')} missing, so only words find these memories:"
            " `wintermute memory rebuild-index` makes them now",
            err=True,
        )


async def _matches(
    stores: Stores, scope: str, query: str | None, most: int, when: datetime | None
) -> list[Hit]:
    """Return matching facts with scores; the newest facts have none."""
    if query is not None:
        return await stores.memories.search(scope, Query(query), most, when)
    await stores.memories.text(scope)
    return [Hit(fact, None) for fact in await stores.facts.latest(scope, 1, most, when)]


async def _answer_all(
    ctx: click.Context,
    stores: Stores,
    batch: BinaryIO,
    scope: str,
    most: int,
    when: datetime | None,
) -> bool:
    """Answer the lines of a file one by one. False if one of them was no question."""
    bad: list[int] = []

    def report(number: int, problem: str) -> None:
        bad[:] = [number]
        bad_line(number, problem)

    moves = await stores.known.moves()
    for asked in questions(lines_of_file(batch), scope, report):
        hits = await stores.memories.search(
            moves.canonical_scope(asked.scope), Query(asked.text, asked.before), most, when
        )
        say(ctx, json.dumps(_answer(asked, hits), ensure_ascii=False))
    return not bad


def bad_line(number: int, problem: str) -> None:
    """Report on stderr the error in a line of a file."""
    click.echo(f"line {number}: {problem}", err=True)


def _answer(asked: BatchQuestion, hits: Sequence[Hit]) -> Json:
    return {"id": asked.id, "hits": [{"id": h.fact.id, "score": _score(h.score)} for h in hits]}


def _hit_values(hit: Hit) -> Json:
    return {
        "id": hit.fact.id,
        "text": hit.fact.text,
        "score": _score(hit.score),
        "source": hit.fact.source,
        "at": stamp(hit.fact.created_at),
        "beside": hit.beside,
    }


def _score(score: float | None) -> float | None:
    return None if score is None else round(score, 6)


def _end_of(when: str, zone: tzinfo) -> datetime | None:
    found = moment_of(when, zone)
    whole_day = timedelta(days=1, milliseconds=-1) if len(when) == DAY else timedelta()
    return found + whole_day if found else None


@click.command("latest")
@click.option(
    "--begin", default=1, show_default=True, help="Start at this memory; 1 is the newest."
)
@click.option("--count", default=10, show_default=True, help="How many memories.")
@whose
@on_stores
async def latest(stores: Stores, begin: int, count: int, scope: str | None) -> Report:
    """Show the newest memories, newest first.

    Example: wintermute memory latest --begin 11 --count 10
    """
    place = await scope_of(stores, scope)
    await stores.memories.text(place)
    facts = await stores.facts.latest(place, begin, count)
    lines = [fact_line(fact, stores.tasks.zone) for fact in facts]
    return Report([as_line(fact) for fact in facts], lines or [await _none(stores, place)])


@click.command("stats")
@reporting
def stats(ctx: click.Context, as_json: bool) -> None:
    """Count memories by person and room.

    Memories that are set aside or have no embedding are counted separately.

    Example: wintermute memory stats
    """

    async def work(stores: Stores, config: Config) -> Report:
        await stores.facts.lapse()
        missing = await stores.meaning.missing_counts() if stores.meaning else {}
        found = await stores.facts.tallies()
        tallies = [_tally_values(stores, each, missing.get(each.scope, 0)) for each in found]
        values = {"backend": config.memory.backend, "scopes": tallies}
        return Report(values, _stats_lines(config.memory.backend, tallies))

    report = with_stores(ctx, work)
    tell(ctx, report.values, *report.lines, as_json=as_json)


def _tally_values(stores: Stores, tally: FactCounts, owed: int) -> Json:
    file = stores.places.memories(tally.scope)
    return {
        "scope": tally.scope,
        "live": tally.live,
        "resting": tally.archived,
        "no_longer_true": tally.ended,
        "retired": tally.retired,
        "by_source": dict(tally.by_source),
        "indexed": tally.indexed,
        "vectors_owed": owed,
        "file_bytes": file.stat().st_size if file.is_file() else 0,
    }


def _stats_lines(backend: str, tallies: Sequence[Json]) -> Iterator[str]:
    yield f"backend: {backend}"
    for each in tallies:
        sources = ", ".join(f"{count} {name}" for name, count in each["by_source"].items() if count)
        yield f"{each['scope']}:"
        yield f"  live: {each['live']}{f' ({sources})' if sources else ''}"
        yield f"  not used for long: {each['resting']}"
        yield f"  no longer true: {each['no_longer_true']}, retired: {each['retired']}"
        yield f"  found by words: {each['indexed']}, embeddings missing: {each['vectors_owed']}"
        yield f"  file: {each['file_bytes']:,} bytes"


@click.command("rebuild-index")
@on_stores
async def rebuild_index(stores: Stores) -> Report:
    """Rebuild the search indexes of memories.

    The daemon does this by itself when it is needed; this command does it at once. Until then,
    search finds words, but not meanings.

    Example: wintermute memory rebuild-index
    """
    async with stores.database.transaction() as tx:
        facts = await stores.facts.words.rebuild(tx)
    made = 0
    if stores.meaning is not None:
        made = await _vectors_made(stores.meaning)
    lines = [f"found by words: {facts}"]
    if stores.meaning is not None:
        lines.append(f"vectors made: {made}")
    return Report({"words": facts, "vectors": made}, lines)


async def _vectors_made(meaning: EmbeddingSearch) -> int:
    """Make missing embeddings, with a progress bar on stderr at a terminal."""
    owed = sum((await meaning.missing_counts()).values())
    with click.progressbar(length=owed, label="vectors", file=sys.stderr) as bar:
        return await meaning.rebuild(lambda made: bar.update(made - bar.pos))


@click.command("why")
@click.argument("fact_id", metavar="ID")
@on_stores
async def why(stores: Stores, fact_id: str) -> Report:
    """Show where a memory comes from and where it was used.

    It also shows which memories it replaced.

    Example: wintermute memory why fact_0123456789abcdef
    """
    fact = await fact_of_id(stores, fact_id)
    found, zone = await provenance(stores, fact), stores.tasks.zone
    return Report(fact_values(fact) | _why_values(found), _why_lines(fact, found, zone))


def _why_values(found: Provenance) -> Json:
    return {
        "learnt": found.learnt,
        "replaced": [fact_values(fact) for fact in found.replaced],
        "now": [fact_values(fact) for fact in found.replaced_by],
        "brought_to": found.brought_to,
    }


def _why_lines(fact: Fact, found: Provenance, zone: ZoneInfo) -> Iterator[str]:
    yield fact_line(fact, zone)
    if not found.learnt:
        yield "nothing is on record of where it comes from"
    for each in found.learnt:
        yield from _learnt_lines(each, zone)
    yield from (f"it replaced: {fact_line(other, zone)}" for other in found.replaced)
    yield from (f"it was replaced by: {fact_line(other, zone)}" for other in found.replaced_by)
    yield from (f"brought to: {_message_line(said, zone)}" for said in found.brought_to)


def _learnt_lines(learnt: MemorySource, zone: ZoneInfo) -> Iterator[str]:
    if learnt.message is None:
        yield f"from {learnt.origin}"
        return
    yield f"from {learnt.link or learnt.origin}:"
    yield from (f"    {_message_line(said, zone)}" for said in learnt.before)
    yield f"  > {_message_line(learnt.message, zone)}"
    yield from (f"    {_message_line(said, zone)}" for said in learnt.after)


def _message_line(said: QuotedMessage, zone: ZoneInfo) -> str:
    return f"{day(said.at, zone)} {said.who}: {brief(said.text) or '[not kept any more]'}"


def fact_values(fact: Fact) -> Json:
    """Return all fields of a memory, for a program."""
    return {
        "id": fact.id,
        "text": fact.text,
        "scope": fact.scope,
        "source": fact.source,
        "speaker": fact.speaker,
        "at": stamp(fact.created_at),
        "valid_from": stamp(fact.valid_from),
        "valid_to": stamp(fact.valid_to) if fact.valid_to else None,
        "retired_at": stamp(fact.retired_at) if fact.retired_at else None,
        "replaced_by": fact.replaced_by,
        "origins": list(fact.origins),
    }


async def fact_of_id(stores: Stores, fact_id: str) -> Fact:
    """Return the memory with an id as `list` shows it. Raises: WintermuteError."""
    return (await facts_of_ids(stores, [fact_id]))[0]


async def facts_of_ids(stores: Stores, ids: Sequence[str]) -> list[Fact]:
    """Return the memories with these ids, each once. Raises: WintermuteError that names unknown ids."""
    names = dict.fromkeys(name.strip().removeprefix("#") for name in ids)
    found = [(fact_id, await stores.facts.get(fact_id)) for fact_id in names]
    missing = [fact_id for fact_id, fact in found if fact is None]
    if missing:
        raise WintermuteError(f"no memory {', '.join(missing)}: `wintermute memory list` shows ids")
    return [fact for _, fact in found if fact]
