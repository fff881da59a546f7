"""`wintermute night`: what is tidied while nobody watches. Help is as quick as that of the program itself."""

import click

from wintermute.cli.options import LazyGroup

VERBS = {
    "run": ("night_run", "Tidy now, and say what came of it."),
    "list": ("night_report", "List the newest nights."),
    "report": ("night_report", "Show what a night did, and what it asks."),
    "apply": ("night_report", "Say yes to what a night asks."),
    "refuse": ("night_report", "Say no to what a night asks."),
    "undo": ("night_report", "Take back what a night did; what was changed since stays."),
}
"""By verb the module it stands in, and its line, which is repeated here so that help loads none."""


@click.group(
    "night",
    cls=LazyGroup,
    lazy={
        verb: f"wintermute.cli.{module}:{'list_' if verb == 'list' else verb}"
        for verb, (module, _) in VERBS.items()
    },
    lines={verb: line for verb, (_, line) in VERBS.items()},
)
def command() -> None:
    """Run, read, answer and undo nights, which tidy memories.

    Example: wintermute night report
    """
