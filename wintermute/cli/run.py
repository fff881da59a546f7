"""`wintermute run`."""

import asyncio

import click

from wintermute.cli.opening import open_config
from wintermute.cli.options import config_option
from wintermute.daemon import run_daemon


@click.command("run")
@config_option
@click.pass_context
def command(ctx: click.Context) -> None:
    """Run the daemon until it is told to stop.

    SIGTERM or SIGINT end it; what is under way is finished first, what is not is kept.

    Example: wintermute run --config ~/wintermute/config.yaml
    """
    asyncio.run(run_daemon(open_config(ctx, level=None)))
