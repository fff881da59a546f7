"""`wintermute night`: tidying at night. Its help is as quick as that of the program itself."""

import click

from wintermute.cli.options import LazyGroup

VERBS = {
    "run": ("night_run", "Run a night now, and print what it did."),
    "list": ("night_report", "List the newest nights."),
    "report": ("night_report", "Show what a night did and asks, or one item of it in full."),
    "apply": ("night_report", "Answer yes to a question of a night."),
    "refuse": ("night_report", "Answer no to a question of a night."),
    "undo": ("night_report", "Undo a night, or one item of it; later changes stay."),
}
"""The module of each command and its help line, which is repeated here so that help loads none."""


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
    """Tidy memories now; read, answer and undo nights.

    Example: wintermute night report
    """
