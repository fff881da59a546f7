"""`wintermute night run`: a night at once, beside a running daemon or without one."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from wintermute.changes.decisions import Decision
from wintermute.changes.nights import Night
from wintermute.cli.night_report import DRY, phase_lines, report_lines, tidying_of
from wintermute.cli.opening import scope_of, scope_option, with_models
from wintermute.cli.options import redacted, reporting, tell
from wintermute.clock import SystemClock
from wintermute.config.schema import Config
from wintermute.llm.models import Models
from wintermute.night.night_jobs import finish_interrupted
from wintermute.night.phases import USES
from wintermute.night.pipeline import Progress, ignore_progress, night_lock
from wintermute.night.report import as_json as night_values
from wintermute.night.report import failed_phases
from wintermute.stores import Stores
from wintermute.text import harmless

WholeNight = tuple[Night, list[Decision]]


@click.command("run")
@click.option("--dry-run", is_flag=True, help="Show what it would do, and change nothing.")
@scope_option("One person or room, as in person:@ann:example.org; default: everybody.")
@click.option("--phase", default="", metavar="NAME", help=f"Run only one phase: {', '.join(USES)}.")
@reporting
def run(ctx: click.Context, as_json: bool, dry_run: bool, scope: str | None, phase: str) -> None:
    """Run a night now, and print what it did.

    The exit code is 1 if a phase failed.

    Example: wintermute night run --dry-run
    """

    async def work(stores: Stores, config: Config, models: Models) -> list[WholeNight]:
        tidied = tidying_of(stores, config, models)
        if phase and phase not in tidied.phases:
            known = ", ".join(tidied.phases)
            raise click.BadParameter(f"there is no phase {phase}: {known}", param_hint="--phase")
        whose = await scope_of(stores, scope) if scope else ""
        now = SystemClock().now()
        day = now.astimezone(stores.tasks.zone).date()
        wanted = Night(DRY, day, "command", "running", now, whose, phase)
        with _watched(
            ctx, await tidied.scopes(wanted), (phase,) if phase else tidied.phases
        ) as progress:
            if dry_run:
                return [await tidied.preview(wanted, progress)]
            async with night_lock(stores.data_dir):
                left = await finish_interrupted(stores, tidied, progress=progress)
                async with stores.database.transaction() as tx:
                    night = await stores.nights.begin(tx, day, "command", whose, phase)
                assert night is not None  # only the scheduled ones are limited to one a day
                night = await tidied.run_night(night, progress)
        return [
            (each, await stores.decisions.listed(stores.database, each.id))
            for each in (*left, night)
        ]

    *finished, (night, items) = with_models(ctx, work)
    lines = [*phase_lines(night), "", *report_lines(night, items)]
    for other, found in finished:
        head = f"{other.id} was interrupted, and is finished now"
        lines = [head, *phase_lines(other), "", *report_lines(other, found), "", night.id, *lines]
    tell(ctx, night_values(night, items), *lines, as_json=as_json)
    ctx.exit(1 if failed_phases(night) else 0)


@contextmanager
def _watched(
    ctx: click.Context, scopes: Sequence[str], phases: Sequence[str]
) -> Iterator[Progress]:
    """Show the present phase and the progress at a terminal."""
    if not sys.stderr.isatty():
        yield ignore_progress
        return
    steps = [(scope, phase) for scope in scopes for phase in phases]
    with click.progressbar(
        length=len(steps), label="night", file=sys.stderr, item_show_func=_shown, show_eta=False
    ) as bar:

        def show(scope: str, phase: str) -> None:
            at = steps.index((scope, phase)) if (scope, phase) in steps else bar.pos
            bar.current_item = redacted(ctx, f"{phase} {scope}".rstrip())
            bar.make_step(max(0, at - bar.pos))
            bar.render_progress()

        yield show
        bar.update(len(steps) - bar.pos, "")


def _shown(step: str | None) -> str | None:
    return harmless(step) if step else None
