"""The options that commands share, and the output of commands."""

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
"""Keys of click's `Context.meta`: the path of the configuration, its redaction, all words given."""

STEERING = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that move a cursor, end a line, or reverse its text."""

SURROGATE = re.compile("[\ud800-\udfff]")
"""Python's mark for a byte of a command line that is not valid text."""
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _remember(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value is not None:
        ctx.meta[CONFIG] = value


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, readable=False),  # we report that ourselves
    metavar="PATH",
    expose_value=False,
    callback=_remember,
    help="Configuration file.",
)


def reporting(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command with --config and --json; it gets click's context and `as_json`."""
    return config_option(json_option(click.pass_context(command)))


class LazyGroup(click.Group):
    """A group whose commands are in modules that are loaded when they are called.

    `lazy`: the place of each command: a module, or `module:name`. `lines`: their help lines, so
    that the help of the group loads no module.
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
        except click.NoSuchCommand as unknown:  # click would suggest loaded commands only
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
    """End the block quietly if the reader of our output is gone, as after `| head -1`."""
    try:
        yield
    except* BrokenPipeError:
        # Python would write its buffer at the end, to a closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_whole(file: str, content: bytes) -> None:
    """Write a file in one step; `-` is stdout. The old content goes only when all of the new is there.

    click.File would empty the old file even if the command fails.

    Raises: WintermuteError if it cannot be written.
    """
    try:
        with click.open_file(file, "wb", atomic=True) as out:
            out.write(content)
    except OSError as error:
        raise WintermuteError(f"{file} cannot be written: {error.strerror}") from None


def refuse_broken(words: Iterable[str]) -> None:
    """Refuse words with invalid bytes, as from a terminal with another encoding (F-050).

    A file may have such a name. Raises: ConfigurationError.
    """
    for word in words:
        if SURROGATE.search(word) and not lexists(word):
            raise ConfigurationError(
                f"{visible(word[:60])} is not UTF-8 text: set LANG to a UTF-8 locale, and type it again"
            )


def redacted(ctx: click.Context, text: str) -> str:
    """Remove the secrets of the configuration and the login from a text, as far as they were read."""
    redact: Callable[[str], str] = ctx.meta.get(REDACT, str)
    return redact(text)


def visible(text: str) -> str:
    r"""Show control characters as marks such as `\u001b`, which mean the same within JSON (W-081)."""
    return STEERING.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text.replace("\r\n", "\n"))


def say(ctx: click.Context, *lines: str) -> None:
    """Print lines without secrets and without characters that steer a terminal."""
    for line in lines:
        click.echo(visible(redacted(ctx, line)))


def tell(ctx: click.Context, values: Any, *lines: str, as_json: bool) -> None:
    """Print values as JSON for a program, or lines for a person."""
    given = dict[str, Any](indent=2, ensure_ascii=False, default=_plain)
    say(ctx, *([json.dumps(values, **given)] if as_json else lines))


def _plain(value: Any) -> Any:
    """Convert a moment, a dataclass or a set to JSON.

    The imports are avoided here, because help would be slower.
    """
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    names = getattr(value, "__dataclass_fields__", ())
    return {name: getattr(value, name) for name in names} if names else sorted(value)
