"""`wintermute core`: the page that is in every prompt, also beside a running daemon."""

import click

from wintermute.changes.change_sets import Reason
from wintermute.changes.decisions import Decision
from wintermute.cli.opening import Report, on_stores, scope_of, scope_option, with_stores
from wintermute.cli.options import reporting, tell
from wintermute.config.schema import Config
from wintermute.errors import MemoryFileUnusable, WintermuteError
from wintermute.forgetting.forget_jobs import refuse_meanwhile
from wintermute.memory.core import EMPTY_CORE, MOST_CORE, bullets, page_problem
from wintermute.memory.core_pages import CorePage, PageVersion
from wintermute.messages import Json
from wintermute.stores import Stores

NO_PAGE = "there is none yet"
whose = scope_option("A person or room, as in person:@ann:example.org; default: the owner.")


@click.group("core")
def command() -> None:
    """Show and edit core.md, which the model sees with every message.

    Example: wintermute core show
    """


@command.command("show")
@whose
@on_stores
async def show(stores: Stores, scope: str | None) -> Report:
    """Print core.md.

    Example: wintermute core show
    """
    place = await scope_of(stores, scope)
    text = (await stores.core_pages.raw(place)).text
    lines = [_name(stores, place) + f": {NO_PAGE}"] if text is None else [text.rstrip("\n")]
    return Report({"scope": place, "text": text}, lines)


@command.command("edit")
@whose
@reporting
def edit(ctx: click.Context, scope: str | None, as_json: bool) -> None:
    """Open core.md in $EDITOR; the old version is kept for 30 days.

    Example: wintermute core edit --scope person:@ann:example.org
    """

    async def begin(stores: Stores, _: Config) -> tuple[str, str, CorePage]:
        place = await scope_of(stores, scope)
        return place, _name(stores, place), await stores.core_pages.raw(place)

    place, name, page = with_stores(ctx, begin)
    text = click.edit(page.text if page.text is not None else EMPTY_CORE, extension=".md")
    if text is None or text == page.text:
        tell(ctx, {"scope": place, "outcome": "unchanged"}, f"unchanged  {name}", as_json=as_json)
        return
    with_stores(ctx, lambda stores, _: _replaced(stores, place, text, page))
    if problem := page_problem(text):
        raise WintermuteError(f"{name} was saved, but cannot be used: {problem}")
    tell(ctx, {"scope": place, "outcome": "saved"}, f"saved  {name}", as_json=as_json)


@command.command("check")
@whose
@reporting
def check(ctx: click.Context, scope: str | None, as_json: bool) -> None:
    """Check the format of core.md, and show changes that need your answer.

    Example: wintermute core check
    """

    async def work(stores: Stores, _: Config) -> tuple[str, str | None, str, list[Decision]]:
        place = await scope_of(stores, scope)
        problem, found = await _checked(stores, place)
        return place, problem, found, await stores.decisions.waiting(place, "core")

    place, problem, found, wishes = with_stores(ctx, work)
    values = {
        "scope": place,
        "problem": problem,
        "proposals": [_wish_json(wish) for wish in wishes],
    }
    lines = [] if problem else [found]
    lines += [line for wish in wishes for line in _wish_lines(wish)]
    if lines or as_json:
        tell(ctx, values, *lines, as_json=as_json)
    if problem:
        raise WintermuteError(problem)


@command.command("history")
@whose
@on_stores
async def history(stores: Stores, scope: str | None) -> Report:
    """Show the versions of the last 30 days, newest first.

    Example: wintermute core history
    """
    versions = await stores.core_pages.versions(await scope_of(stores, scope))
    lines = [line for one in versions for line in _version_lines(one, stores)]
    return Report(versions, lines or ["Nothing was changed in the last 30 days."])


@command.command("restore")
@click.argument("number", metavar="N", type=int)
@whose
@on_stores
async def restore(stores: Stores, number: int, scope: str | None) -> Report:
    """Restore version N, as `history` numbers them.

    Example: wintermute core restore 1
    """
    await refuse_meanwhile(stores)
    place = await scope_of(stores, scope)
    versions = await stores.core_pages.versions(place)
    wanted = next((one for one in versions if one.number == number), None)
    if wanted is None:
        listed = ", ".join(f"{one.number} (until {_when(one, stores)})" for one in versions)
        raise WintermuteError(f"no version {number} is kept; there are: {listed or 'none'}")
    page = await stores.core_pages.raw(place)
    text = EMPTY_CORE if wanted.text is None else wanted.text
    name = _name(stores, place)
    if text == page.text:
        return Report({"scope": place, "outcome": "unchanged"}, [f"unchanged  {name}"])
    await _replaced(stores, place, text, page)
    said = f"restored  {name} as it was until {_when(wanted, stores)}"
    return Report({"scope": place, "outcome": "restored"}, [said])


def _name(stores: Stores, scope: str) -> str:
    return stores.places.core_file(scope).name


async def _replaced(stores: Stores, scope: str, text: str, seen: CorePage) -> None:
    if await stores.core_pages.replace(Reason("command", scope), text, seen) is None:
        raise WintermuteError(f"{_name(stores, scope)} was saved meanwhile: nothing was changed")


async def _checked(stores: Stores, scope: str) -> tuple[str | None, str]:
    """Return the error of the page, with its line, and the text if there is none."""
    name = _name(stores, scope)
    try:
        page = await stores.core_pages.found(scope)
    except MemoryFileUnusable as problem:
        return str(problem), ""
    if page.text is None:
        return None, f"{name}: {NO_PAGE}"
    if wrong := page_problem(page.text):
        return f"{name} {wrong}", ""
    said, size = len(bullets(page.text)), len(page.text)
    return None, f"ok  {name}: {said} bullets, {size:,} of {MOST_CORE:,} characters"


def _wish_json(wish: Decision) -> Json:
    values = {"id": wish.id, "scope": wish.scope, "kind": "core", "text": wish.after}
    return {**values, "reason": wish.reason, "created_at": wish.at, "item": ""}


def _wish_lines(wish: Decision) -> list[str]:
    head = f"proposed: {wish.reason}. The page would be:"
    return [head, *(f"  {line}".rstrip() for line in wish.after.rstrip().split("\n"))]


def _version_lines(version: PageVersion, stores: Stores) -> list[str]:
    text = "(no page)" if version.text is None else version.text.rstrip()
    head = f"{version.number}  until {_when(version, stores)}  {version.cause}  {version.set_id}"
    return [head, *(f"  {line}".rstrip() for line in text.split("\n") if line.strip())]


def _when(version: PageVersion, stores: Stores) -> str:
    return f"{version.until.astimezone(stores.tasks.zone):%Y-%m-%d %H:%M}"
