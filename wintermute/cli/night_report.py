"""`wintermute night list`, `report`, `apply` and `undo`: what nights changed, asked and undid."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click

from wintermute.changes.change_sets import KEPT
from wintermute.changes.decisions import OPEN, Decision
from wintermute.changes.nights import Night
from wintermute.cli.opening import Report, on_stores, with_models, with_stores
from wintermute.cli.options import reporting, tell
from wintermute.clock import CheckedClock, SystemClock
from wintermute.commands.tasks import NOTHING_TO_UNDO, undo_lines
from wintermute.config.schema import Config
from wintermute.errors import WintermuteError
from wintermute.llm.models import Models
from wintermute.messages import Json
from wintermute.night.night_undo import NightUndone, is_old, require_kept, undo_items
from wintermute.night.phases import night_pipeline
from wintermute.night.pipeline import NightPipeline
from wintermute.night.questions import LOOKED_THROUGH, AnswerResult, Questions
from wintermute.night.report import as_json as night_values
from wintermute.night.report import done_words, failed_phases, item_in_full, item_json, item_text
from wintermute.prompt.context_builder import read_texts
from wintermute.stores import Stores
from wintermute.text import EMPTY_AT_SHELL, counted, one_line
from wintermute.work.data_folder import DataFolder

DRY = "dry-run"
"""The id of a night that changes nothing."""
OLD = f"its changes are older than {KEPT.days} days and no longer listed"


def tidying_of(stores: Stores, config: Config, models: Models) -> NightPipeline:
    """Build the nightly pipeline without a chat."""
    clock = CheckedClock(SystemClock())
    texts = read_texts(stores.prompts, config.opening, wiki=config.wiki)
    return night_pipeline(DataFolder(config, stores, models, texts, clock))


def phase_lines(night: Night) -> list[str]:
    """Return a line for each phase: its outcome, and counts before and after (M-054)."""
    lines = [
        f"{tally.name:<16}  {tally.status:<6}  {tally.before} -> {tally.after}"
        f"{f'  {tally.scope}' if tally.scope else ''}"
        f"{f'  {one_line(tally.note)}' if tally.note else ''}"
        for tally in night.phases
    ]
    return lines or ["nothing was looked at"]


def report_lines(night: Night, items: Sequence[Decision]) -> Iterator[str]:
    """Yield the changes and questions of a night, item by item, and its cost."""
    for item in items:
        yield f"{item.id}  {item.state:<8}  {item_text(item)}"
    asked = sum(item.state == "open" for item in items)
    said = [
        part for part in (done_words(items), counted(asked, "question") if asked else "") if part
    ]
    nothing = OLD if is_old(night, SystemClock().now()) else "nothing was changed"
    nothing = "nothing would be changed" if night.id == DRY else nothing
    yield f"{'; '.join(said) or nothing}; {counted(night.calls, 'call')}, {night.tokens:,} tokens"
    if asked:
        yield "whole: `wintermute night report NIGHT#ITEM`; yes or no: `wintermute night apply`, `refuse`"


def night_line(night: Night, items: Sequence[Decision]) -> str:
    """Return one line for a night."""
    counts = [
        (state, sum(item.state == state for item in items)) for state in ("done", "open", "undone")
    ]
    counts_text = ", ".join(f"{count} {state}" for state, count in counts if count)
    counts_text = counts_text or (OLD if is_old(night, SystemClock().now()) else "no change")
    broken = (
        f", {counted(len(failed_phases(night)), 'phase')} failed" if failed_phases(night) else ""
    )
    return f"{night.id:<12}  {night.date}  {night.why:<8}  {night.state:<7}  {counts_text}{broken}"


@click.command("list")
@click.option("--count", default=14, show_default=True, help="How many nights.")
@on_stores
async def list_(stores: Stores, count: int) -> Report:
    """List the newest nights.

    Example: wintermute night list --count 30
    """
    found = [
        (night, await stores.decisions.listed(stores.database, night.id))
        for night in await stores.nights.newest(max(count, 0))
    ]
    values = [night_values(night, items) for night, items in found]
    return Report(values, [night_line(*each) for each in found] or [EMPTY_AT_SHELL["nights"]])


@click.command("report")
@click.argument("night", metavar="[NIGHT[#ITEM]]", required=False)
@on_stores
async def report(stores: Stores, night: str | None) -> Report:
    """Show what a night did and asks, or one item of it in full.

    NIGHT is a date or an id, as `list` shows it; default: the newest night.

    Example: wintermute night report 2026-05-04
    """
    questions = Questions(stores)
    if night and "#" in night:
        item = await questions.item(night)
        return Report(item_json(item), item_in_full(item, chat=False))
    found = (
        await questions.night(night) if night else next(iter(await stores.nights.newest(1)), None)
    )
    if found is None:
        return Report(None, [EMPTY_AT_SHELL["nights"]])
    items = await stores.decisions.listed(stores.database, found.id)
    head = f"{found.id}, {found.why}, {found.state}"
    lines = [head, *phase_lines(found), "", *report_lines(found, items)]
    if found.id != night:
        same = await stores.nights.newest(LOOKED_THROUGH, found.date)
        others = [each.id for each in same if each.id != found.id]
        lines += [f"also of {found.date}: {', '.join(others)}"] if others else []
    waiting = await stores.decisions.listed(stores.database, states=OPEN)
    asked = [item.id for item in waiting if item.night != found.id]
    lines += [f"still asked by other nights: {', '.join(asked)}"] if asked else []
    return Report(night_values(found, items), lines)


@click.command("undo")
@click.argument("which", metavar="NIGHT[#ITEM]")
@reporting
def undo(ctx: click.Context, as_json: bool, which: str) -> None:
    """Undo a night, or one item of it; later changes stay.

    The exit code is 1 if nothing is left to undo.

    Example: wintermute night undo 20260504#3
    """

    async def work(stores: Stores, _: Config) -> NightUndone:
        questions = Questions(stores)
        night = await questions.night(which.partition("#")[0])
        items = await stores.decisions.listed(stores.database, night.id)
        require_kept(night, items, SystemClock().now())
        if "#" in which:
            items = [await questions.item(which)]
        return await undo_items(stores, items, whole="#" not in which)

    done = with_stores(ctx, work)
    lines = [line for each in done.undone for line in undo_lines(each, shell=True)]
    tell(ctx, _values(done), *(lines or [NOTHING_TO_UNDO]), as_json=as_json)
    ctx.exit(1 if done.is_nothing else 0)


def _values(done: NightUndone) -> Json:
    return {
        "items": [item.id for item in done.items],
        "back": [asdict(change) for each in done.undone for change in each.back],
        "kept": [asdict(kept) for each in done.undone for kept in each.kept],
        "merges": [asdict(merge) for each in done.undone for merge in each.merges],
    }


@click.command("apply")
@click.argument("item", metavar="NIGHT#ITEM")
@reporting
def apply(ctx: click.Context, as_json: bool, item: str) -> None:
    """Answer yes to a question of a night.

    It is refused if the memory, task or page has changed since. If the night asks which of two
    memories is true, yes means the newer one. In a chat, `/night` has more answers.

    Example: wintermute night apply 20260504#3
    """

    async def work(stores: Stores, config: Config, models: Models) -> Decision:
        tidied = tidying_of(stores, config, models)
        questions = Questions(stores)
        return _answered(await questions.approve(await questions.item(item), tidied.executors))

    done = with_models(ctx, work)
    tell(ctx, {"id": done.id, "state": "done"}, f"{done.id} done", as_json=as_json)


@click.command("refuse")
@click.argument("item", metavar="NIGHT#ITEM")
@reporting
def refuse(ctx: click.Context, as_json: bool, item: str) -> None:
    """Answer no to a question of a night: nothing changes, and no night asks it again.

    If the night asks which of two memories is true, it keeps both.

    Example: wintermute night refuse 20260504#3
    """

    async def work(stores: Stores, _: Config) -> Decision:
        questions = Questions(stores)
        return _answered(await questions.refuse(await questions.item(item)))

    done = with_stores(ctx, work)
    tell(ctx, {"id": done.id, "state": "refused"}, f"{done.id} stays as it is", as_json=as_json)


def _answered(answered: AnswerResult) -> Decision:
    """Return the answered item. Raises: WintermuteError if it was no longer open."""
    if answered.problem:
        raise WintermuteError(f"{answered.item.id}: {answered.problem}")
    return answered.item
