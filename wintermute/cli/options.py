"""The options that commands share, and where they leave what they were given."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from os.path import lexists
from pathlib import Path
from typing import Any

import click

from wintermute.errors import ConfigurationError, WintermuteError

CONFIG = "wintermute.config"
REDACT = "wintermute.redact"
GIVEN = "wintermute.given"
"""Keys of click's `Context.meta`: the path of the configuration, what hides its secrets, all words."""


STEERING = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that move a cursor, end a line, or reverse the text there."""


SURROGATE = re.compile("[\ud800-\udfff]")
"""Python's sign for a byte of a command line that is no text."""
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _remember(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value is not None:
        ctx.meta[CONFIG] = value


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, readable=False),  # told in our own words
    metavar="PATH",
    expose_value=False,
    callback=_remember,
    help="Configuration file.",
)


def reporting(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes --config and --json, and gets click's context and `as_json`."""
    return config_option(json_option(click.pass_context(command)))


class LazyGroup(click.Group):
    """Commands, some in modules that are loaded when they are called.

    `lazy`: where each of those is: a module, or `module:name`. `lines`: what is said of all commands
    in the help of the group, so that it loads none of them.
    """

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, str],
        lines: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self._lazy = lazy
        self._lines = lines

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self._lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, name = self._lazy[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name or "command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as unknown:  # click compares with what is loaded
            name, known = unknown.command_name, self.list_commands(ctx)
            raise click.NoSuchCommand(name, possibilities=known, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self._lines is None:
            super().format_commands(ctx, formatter)
            return
        with formatter.section("Commands"):
            formatter.write_dl(list(self._lines.items()))


@contextmanager
def unread() -> Iterator[None]:
    """A block that ends quietly when whoever read our output is gone, as after `| head -1`."""
    try:
        yield
    except* BrokenPipeError:
        # Python writes what is left over at its end; nobody wants it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_whole(file: str, content: bytes) -> None:
    """Write a file in one go, `-` is stdout; what stood there goes only when all of this is there.

    click.File would put an empty file in the place of the old one when a command fails.

    Raises: WintermuteError when it cannot be written.
    """
    try:
        with click.open_file(file, "wb", atomic=True) as out:
            out.write(content)
    except OSError as error:
        raise WintermuteError(f"{file} cannot be written: {error.strerror}") from None


def refuse_broken(words: Iterable[str]) -> None:
    """Refuse words whose bytes are no text, as a terminal of another encoding sends (F-050).

    A file may be called so. Raises: ConfigurationError.
    """
    for word in words:
        if SURROGATE.search(word) and not lexists(word):
            raise ConfigurationError(
                f"{visible(word[:60])} is not UTF-8 text: set LANG to a UTF-8 locale, and type it again"
            )


def redacted(ctx: click.Context, text: str) -> str:
    """Text without the secrets of the configuration and the login, as far as they were read."""
    redact: Callable[[str], str] = ctx.meta.get(REDACT, str)
    return redact(text)


def visible(text: str) -> str:
    """Text for a terminal with such marks as `\\u001b`: the same within JSON (W-081)."""
    return STEERING.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text.replace("\r\n", "\n"))


def say(ctx: click.Context, *lines: str) -> None:
    """Print lines without the secrets of the configuration, and nothing that steers a terminal."""
    for line in lines:
        click.echo(visible(redacted(ctx, line)))


def tell(ctx: click.Context, values: Any, *lines: str, as_json: bool) -> None:
    """Print values as JSON for a program, or lines for a person."""
    given = dict[str, Any](indent=2, ensure_ascii=False, default=_plain)
    say(ctx, *([json.dumps(values, **given)] if as_json else lines))


def _plain(value: Any) -> Any:
    """Give JSON for a moment as `stamp` has it, for a value by its fields, and for a set in order.

    Help would take longer with what those modules load.
    """
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    names = getattr(value, "__dataclass_fields__", ())
    return {name: getattr(value, name) for name in names} if names else sorted(value)
