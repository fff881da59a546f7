"""`wintermute run`."""

import asyncio
from collections.abc import Callable

import click

from wintermute.cli.opening import configure_logging, open_config
from wintermute.cli.options import CONFIG, REDACT, config_option
from wintermute.config.read import environment
from wintermute.config.schema import UNTOUCHED, Config, is_untouched
from wintermute.daemon import Externals, run_daemon
from wintermute.errors import ConfigurationError


@click.command("run")
@config_option
@click.pass_context
def command(ctx: click.Context) -> None:
    """Run the daemon until it is told to stop.

    SIGTERM or SIGINT end it; what is under way is finished first, what is not is kept. SIGHUP
    reads the configuration again and goes on with it, or with the old one when it is wrong.

    Example: wintermute run --config ~/wintermute/config.yaml
    """
    externals = Externals()
    hides: list[Callable[[str], str]] = [externals.logs]

    def opened() -> Config:
        """What the file says now. What was a secret before is hidden from the logs as well."""
        config = open_config(ctx, level=None)
        if is_untouched(config):
            raise ConfigurationError(f"{ctx.meta[CONFIG]}: {UNTOUCHED}")
        hides.append(ctx.meta[REDACT])
        ctx.meta[REDACT] = redact
        configure_logging(config.log.level, redact, environment())
        return config

    def redact(text: str) -> str:
        for hide in hides:
            text = hide(text)
        return text

    asyncio.run(run_daemon(opened(), opened, externals))
