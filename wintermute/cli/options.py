"""The options that commands share, and where they leave what they were given."""

from collections.abc import Callable
from pathlib import Path

import click

CONFIG = "wintermute.config"
REDACT = "wintermute.redact"
"""Keys of click's `Context.meta`: the path of the configuration, and what hides its secrets."""


def _remember(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value is not None:
        ctx.meta[CONFIG] = value


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, readable=False),  # told in our own words
    metavar="PATH",
    expose_value=False,
    callback=_remember,
    help="The configuration, as before the command.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def redacted(ctx: click.Context, text: str) -> str:
    """Text without the secrets of the configuration and the login, as far as they were read."""
    redact: Callable[[str], str] = ctx.meta.get(REDACT, str)
    return redact(text)
