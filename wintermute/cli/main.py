"""The entry of the command line. It imports nothing heavy: `--help` has to be quick."""

from pathlib import Path
from typing import Any

import click

from wintermute import __version__
from wintermute.cli.options import CONFIG, GIVEN, LazyGroup, redacted, refuse_broken, visible
from wintermute.errors import ConfigurationError, WintermuteError

VERBS = {
    "init": "Make a folder with config.yaml and data/.",
    "run": "Run the daemon until you stop it.",
    "demo": "Try Wintermute, with nothing to set up.",
    "chat": "Talk in the terminal, without Matrix.",
    "web": "Print an address for logging in to the web pages.",
    "check": "Test every part of the setup, and say what to fix.",
    "status": "Show what does not work, and what to do about it.",
    "memory": "Show, change and forget memories.",
    "core": "Show and edit core.md, which the model sees with every message.",
    "wiki": "Read, search and tidy the wiki, and turn conversations into pages.",
    "task": "Show and change tasks and reminders.",
    "skill": "Show and change skills: procedures for the assistant.",
    "night": "Tidy memories now; read, answer and undo nights.",
    "prompt": "Show the prompt that the model would get now, part by part.",
    "loom": "Read, export and fork the record of all conversations.",
    "matrix": "Verify the bot, trust people, log out, and replace keys.",
}
"""Command names and help lines. They repeat those of the modules, so that help loads none."""


class Program(LazyGroup):
    """The group of all commands; it reports expected failures."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[GIVEN] = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            refuse_broken(ctx.meta[GIVEN])
            return super().invoke(ctx)
        except WintermuteError as error:
            for line in redacted(ctx, str(error)).split("\n"):
                click.echo(f"wintermute: {visible(line)}", err=True)
            ctx.exit(2 if isinstance(error, ConfigurationError) else 1)


@click.group(
    cls=Program,
    lazy={verb: f"wintermute.cli.{verb}" for verb in VERBS},
    lines=VERBS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="wintermute %(version)s")
@click.option(
    "--config",
    type=click.Path(path_type=Path, readable=False),  # we report that ourselves
    default=Path("config.yaml"),
    envvar="WINTERMUTE_CONFIG",
    metavar="PATH",
    help="Configuration file; default: $WINTERMUTE_CONFIG, or config.yaml in this folder.",
)
@click.pass_context
def cli(ctx: click.Context, config: Path) -> None:
    """A personal assistant that lives in your Matrix rooms.

    Example: wintermute init ~/wintermute
    """
    ctx.meta[CONFIG] = config


def main() -> None:
    """Run the command line and exit with its code."""
    cli(prog_name="wintermute")
