"""`wintermute run`: the daemon."""

import asyncio
from collections.abc import Callable

import click

from wintermute.cli.opening import configure_logging, open_config
from wintermute.cli.options import CONFIG, REDACT, config_option
from wintermute.config.read import environment
from wintermute.config.schema import UNTOUCHED, Config, is_still_example
from wintermute.daemon import Externals, run_daemon
from wintermute.errors import ConfigurationError


@click.command("run")
@config_option
@click.option("--take-over", is_flag=True, help="End another installation on the same account.")
@click.pass_context
def command(ctx: click.Context, *, take_over: bool) -> None:
    """Run the daemon until you stop it.

    SIGTERM or SIGINT stop it. It finishes the message it is sending and keeps the rest for the next
    start. SIGHUP reads the configuration again. If the new one has mistakes, the old one stays in
    use.

    It does not start while another installation uses the same account. --take-over ends the other
    one. Do not use it in a service: two services would end each other again and again.

    Example: wintermute run --config ~/wintermute/config.yaml
    """
    externals = Externals(take_over=take_over)
    hides: list[Callable[[str], str]] = [externals.logs]

    def opened() -> Config:
        """Read the configuration as it is now. Secrets of earlier ones stay hidden in the logs."""
        config = open_config(ctx, level=None)
        if is_still_example(config):
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
