"""Facts as lines for a person or JSON for a program, and the exit code that follows from them."""

import dataclasses
import json
from collections.abc import Iterable

import click

from wintermute.cli.options import redacted
from wintermute.health.report import Fact


def show(ctx: click.Context, facts: Iterable[Fact], *, as_json: bool) -> None:
    """Print the facts and leave with 1 when one of them says fail."""
    known = [dataclasses.replace(fact, text=redacted(ctx, fact.text)) for fact in facts]
    if as_json:
        text = json.dumps([dataclasses.asdict(fact) for fact in known], indent=2)
    else:
        text = "\n".join(f"{fact.state:<4}  {fact.name}: {fact.text}" for fact in known)
    click.echo(text)
    ctx.exit(1 if any(fact.state == "fail" for fact in known) else 0)
