"""`wintermute matrix`: the bot's login and its key store. The daemon must be stopped for these."""

import asyncio

import click

from wintermute.cli.opening import open_config
from wintermute.cli.options import config_option, redacted
from wintermute.clock import SystemClock
from wintermute.config.lock import hold
from wintermute.matrix import login


@click.group("matrix")
def command() -> None:
    """Log out, or start again with encryption.

    Example: wintermute matrix logout
    """


@command.command("logout")
@config_option
@click.pass_context
def logout(ctx: click.Context) -> None:
    """Remove the bot's device from the homeserver and its token from here.

    Example: wintermute matrix logout
    """
    config = open_config(ctx)
    with hold(config.data_dir):
        said = asyncio.run(login.logout(config.matrix, config.data_dir / "matrix"))
    click.echo(redacted(ctx, said))


@command.command("reset-crypto")
@config_option
@click.pass_context
def reset_crypto(ctx: click.Context) -> None:
    """Move the key store aside, with a date; the next start makes a new device.

    Example: wintermute matrix reset-crypto
    """
    config = open_config(ctx)
    with hold(config.data_dir):
        said = login.reset_crypto(config.data_dir / "matrix", SystemClock())
    click.echo(redacted(ctx, said))
