"""The entry of the command line. Imports nothing heavy: `--help` has to be quick."""

from pathlib import Path
from typing import Any

import click

from wintermute import __version__
from wintermute.cli.options import CONFIG, GIVEN, LazyGroup, redacted, refuse_broken, visible
from wintermute.errors import ConfigurationError, WintermuteError

VERBS = {
    "init": "Make a folder with config.yaml and data/.",
    "run": "Run the daemon until it is told to stop.",
    "demo": "Try a whole Wintermute, with nothing to set up.",
    "chat": "Talk in the terminal, without Matrix.",
    "web": "Print an address that logs you in to the web pages.",
    "check": "Try every part and say what to do.",
    "status": "Show what does not work, and what to do about it.",
    "memory": "What is remembered: show, change, forget.",
    "core": "What is always known: the page that is in every prompt.",
    "wiki": "Pages that link to each other, and grow out of conversations.",
    "task": "What is to be done: show and change it.",
    "skill": "How something is done: procedures.",
    "night": "What is tidied at night: run it, read it, answer it, take it back.",
    "prompt": "Show the whole prompt as it would go out now, part by part.",
    "loom": "What was said and done: read, fork, replay.",
    "matrix": "Whom to trust, how others can trust the bot, its login and its keys.",
}
"""Each stands in the module of its name; the line is repeated here so that help loads none."""


class Program(LazyGroup):
    """All commands, and what becomes of an expected failure."""

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
    type=click.Path(path_type=Path, readable=False),  # told in our own words
    default=Path("config.yaml"),
    envvar="WINTERMUTE_CONFIG",
    metavar="PATH",
    help="The configuration; default: $WINTERMUTE_CONFIG, or config.yaml in this folder.",
)
@click.pass_context
def cli(ctx: click.Context, config: Path) -> None:
    """A personal assistant that lives in your Matrix rooms.

    Example: wintermute init ~/wintermute
    """
    ctx.meta[CONFIG] = config


def main() -> None:
    """Run the command line and leave with its exit code."""
    cli(prog_name="wintermute")
