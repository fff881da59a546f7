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
@click.option("--take-over", is_flag=True, help="End another installation on the same account.")
@click.pass_context
def command(ctx: click.Context, *, take_over: bool) -> None:
    """Run the daemon until it is told to stop.

    SIGTERM or SIGINT end it; what is under way is finished first, what is not is kept. SIGHUP
    reads the configuration again and goes on with it, or with the old one when it is wrong.

    It does not start while another installation uses the same account; with --take-over the
    other one ends. Do not write that into a service: two would end each other.

    Example: wintermute run --config ~/wintermute/config.yaml
    """
    externals = Externals(take_over=take_over)
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
