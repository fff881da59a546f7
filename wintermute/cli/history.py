"""`history` and `undo`, the same commands for everything that can be changed."""

import click

from wintermute.changes.change_sets import ChangeSet, ItemKind
from wintermute.changes.undo import Undone
from wintermute.cli.opening import Report, on_stores, with_stores
from wintermute.cli.options import redacted, reporting, tell
from wintermute.commands.tasks import NOTHING_TO_UNDO, set_lines, undo_lines
from wintermute.config.schema import Config
from wintermute.errors import WintermuteError
from wintermute.forgetting.forget_jobs import refuse_meanwhile
from wintermute.stores import Stores
from wintermute.verbs.undo import undo as take_back

WOULD = "`undo` would undo this:"
CONFIRM = (
    "undo needs --yes for this change: it is over an hour old, or changed more than three items"
)


def history_command(kind: ItemKind) -> click.Command:
    """Make the command `history`, which lists the changes of the last 30 days, newest first."""

    @click.command("history")
    @click.option("--count", default=20, show_default=True, help="How many change sets to show.")
    @on_stores
    async def history(stores: Stores, count: int) -> Report:
        await _take_hand_edits(stores, kind)
        found = await stores.changes.history((kind,), limit=max(count, 0))
        lines = [line for one in found for line in set_lines(one, stores.tasks.zone)]
        return Report(found, lines or ["Nothing was changed in the last 30 days."])

    history.help = (
        "Show the changes of the last 30 days, newest first.\n\n"
        f"Example: wintermute {_noun(kind)} history"
    )
    return history


def undo_command(kind: ItemKind) -> click.Command:
    """Make the command `undo`, which undoes a change set as far as nothing has changed since."""

    @click.command("undo")
    @click.argument("batch", required=False)
    @click.option("--last", is_flag=True, help="Undo your newest change that is not undone yet.")
    @click.option("--yes", is_flag=True, help="With --last: undo it even if it is old or large.")
    @reporting
    def undo(ctx: click.Context, batch: str | None, last: bool, yes: bool, as_json: bool) -> None:
        if (batch is None) != last:
            raise click.UsageError("give a change set as `history` shows it, or --last")

        async def work(stores: Stores, _: Config) -> tuple[Undone, bool]:
            await _take_hand_edits(stores, kind)
            await refuse_meanwhile(stores)
            wanted = await _wanted(stores, kind, batch)
            if last and not yes and (asked := await stores.undo.to_confirm(wanted)):
                return asked, False
            return await take_back(stores, wanted), True

        undone, is_done = with_stores(ctx, work)
        lines = undo_lines(undone, shell=True)
        if not is_done:
            click.echo(redacted(ctx, "\n".join([WOULD, *lines])), err=True)
            raise WintermuteError(CONFIRM)
        values = {
            "set": undone.set_id,
            "back": undone.back,
            "kept": undone.kept,
            "merges": undone.merges,
        }
        head = ["taken back:"] if undone.back or undone.merges else []
        tell(ctx, values, *head, *(lines or [NOTHING_TO_UNDO]), as_json=as_json)
        ctx.exit(0 if undone.back or undone.merges else 1)

    undo.help = f"Undo a change set; later changes stay.\n\nGive its id as `history` shows it.\n\nExample: wintermute {_noun(kind)} undo --last"
    return undo


async def _wanted(stores: Stores, kind: ItemKind, batch: str | None) -> ChangeSet:
    if batch is None:
        found = await stores.changes.newest((kind,), asked=True)
        missing = "nothing is left to undo"
    else:
        found = await stores.changes.get(batch.strip().removeprefix("#"))
        missing = f"no change set {batch}: `history` lists those of the last 30 days"
    if found is None:
        raise WintermuteError(missing)
    others = {change.kind for change in found.changes} - {kind}
    if kind == "fact":  # the core page is memory too
        others -= {"core"}
    if len(others) == 1 and all(change.kind != kind for change in found.changes):
        raise WintermuteError(f"{found.id} changed a {others.pop()}: undo it there")
    return found


async def _take_hand_edits(stores: Stores, kind: ItemKind) -> None:
    """Take in edits of the memories files first: the newest change may be one of them."""
    if kind == "fact":
        for scope in await stores.facts.scopes():
            await stores.memories.text(scope)


def _noun(kind: ItemKind) -> str:
    return {"fact": "memory"}.get(kind, kind)
