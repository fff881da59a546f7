"""`wintermute task export`: tasks for a calendar application."""

import click

from wintermute.cli.opening import scope_of, scope_option, with_stores
from wintermute.cli.options import config_option, write_whole
from wintermute.config.schema import Config
from wintermute.stores import Stores
from wintermute.tasks.ical import calendar
from wintermute.tasks.tasks import EVERYWHERE


@click.command("export")
@click.argument("file", type=click.Path(dir_okay=False), metavar="FILE.ics", default="-")
@scope_option("Only those of a person or room, as in person:@ann:example.org.", EVERYWHERE)
@config_option
@click.pass_context
def command(ctx: click.Context, file: str, scope: str | None) -> None:
    """Write the active tasks as an iCalendar file: events when they are due, to-dos without a time.

    Example: wintermute task export tasks.ics
    """

    async def work(stores: Stores, _: Config) -> bytes:
        named = await scope_of(stores, scope) if scope else None
        return calendar(await stores.tasks.listed(named), stores.tasks.zone)

    write_whole(file, with_stores(ctx, work))
