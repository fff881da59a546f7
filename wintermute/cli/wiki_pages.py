"""`wintermute wiki consolidate` and `undo`: turning conversations into pages, and undoing that."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path
from shlex import quote
from typing import Any, Literal

import click

from wintermute.cli.history import undo_command
from wintermute.cli.opening import DATABASE, open_config, open_with_gaps, opened_stores
from wintermute.cli.options import CONFIG, REDACT, redacted, reporting, tell
from wintermute.cli.wiki_store import conversation_of, local_now, settings_of, store_option
from wintermute.clock import SystemClock
from wintermute.config.read import environment
from wintermute.config.schema import Config
from wintermute.config.secrets import Redaction, secret_values
from wintermute.config.wiki import WikiSettings
from wintermute.errors import ConfigurationError, StoreMissing, WintermuteError
from wintermute.llm.background import BackgroundModels
from wintermute.llm.models import Models
from wintermute.pages.agents import BUILTIN, PageAgent, ProgramAgent, program_environment
from wintermute.pages.consolidation import Consolidation, Preview
from wintermute.pages.page_writer import PageWriter, WriterPrompts
from wintermute.pages.sources import ChatSource, Consolidations, ConversationSource, FolderSource
from wintermute.templates import Template
from wintermute.text import harmless
from wintermute.wiki.folder import missing
from wintermute.wiki.job_undo import UndoneJob, undo_job
from wintermute.wiki.page_jobs import WikiJob, read_job
from wintermute.wiki.store import WikiStore

ONLY_BUILTIN = "only the agent builtin can make pages from a chat"
NO_CONVERSATION = "there is no conversation {named}: name a folder of messages"
AGAIN = (
    "Wintermute does not read that conversation again by itself: `wintermute wiki consolidate"
    " --conversation {raw}` does"
)
UNCHANGED = "no page was changed"
NO_RECORD = "changes of this store are not recorded: `wintermute wiki undo JOB` undoes a job"
NOTHING_NEW = "There is nothing new since the last time."

Need = Literal["whole", "sound", "none"]
"""The configuration a command needs: complete; without mistakes, if there is one; or any."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A store and its configuration; None for a store alone."""

    settings: WikiSettings
    config: Config | None
    redact: Redaction

    @classmethod
    def for_command(cls, ctx: click.Context, store: Path | None, *, need: Need) -> "_Target":
        """Find the store of a command. `need`: its configuration. Raises: ConfigurationError; StoreMissing."""
        settings = settings_of(ctx, store)
        if not WikiStore(settings.store).exists:
            raise StoreMissing(missing(settings.store))
        config = open_config(ctx, spared="matrix") if need == "whole" else _config(ctx, need)
        return cls(settings, config, ctx.meta.get(REDACT) or Redaction(()))

    @property
    def wiki(self) -> WikiStore:
        """The store."""
        return WikiStore(self.settings.store)

    @property
    def is_recorded(self) -> bool:
        """True if the database records jobs on this store: it is the configured one."""
        return (
            self.config is not None
            and (self.config.data_dir / DATABASE).exists()
            and self.config.wiki_store.resolve() == self.settings.store.resolve()
        )

    @asynccontextmanager
    async def opened(
        self, *, models: bool
    ) -> AsyncIterator[tuple[Consolidations | None, Models | None]]:
        """Open the record of this store, if there is one, and the models, if they are needed."""
        if self.config is None or not (models or self.is_recorded):
            yield None, None
            return
        async with opened_stores(self.config, self.settings) as (stores, asked):
            kept = Consolidations(stores, SystemClock()) if self.is_recorded else None
            yield kept, asked


def _config(ctx: click.Context, need: Need) -> Config | None:
    """Read the configuration, if there is one.

    An unreadable one is an error if a program is to run: its secrets could not be hidden from the
    program (W-057).
    """
    try:
        return open_with_gaps(ctx, level="warning")[0]
    except ConfigurationError:
        if need == "sound" and Path(ctx.meta[CONFIG]).exists():
            raise
        return None


@click.command("consolidate")
@click.option(
    "--conversation",
    required=True,
    metavar="PATH|ROOM",
    help="A folder of messages, or a direct chat of yours.",
)
@click.option(
    "--agent",
    default=BUILTIN,
    show_default=True,
    help="The program that writes the pages, from wiki.agent_cmds.",
)
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@click.option("--wait", is_flag=True, help="Wait until no other job is running.")
@store_option
@reporting
def consolidate(
    ctx: click.Context,
    as_json: bool,
    conversation: str,
    agent: str,
    dry_run: bool,
    wait: bool,
    store: Path | None,
) -> None:
    """Turn a conversation into pages, or what is new in a chat.

    From a chat it reads only what was said since the last time.

    Example: wintermute wiki consolidate --conversation conversations/20260504-101500 --dry-run
    """
    target = _Target.for_command(ctx, store, need="whole" if agent == BUILTIN else "sound")
    zone = local_now(ctx).tzinfo

    async def work() -> WikiJob | Preview | None:
        async with target.opened(models=agent == BUILTIN) as (kept, models):
            at_work = _consolidation(target, kept, models, zone)
            at_work.agent(agent)
            material = _material(target, kept, conversation, agent)
            _progress(f"{agent} is at work")
            if dry_run:
                return await at_work.preview(material, agent)
            return await at_work.consolidate(material, agent, wait=wait)

    done = asyncio.run(work())
    if isinstance(done, Preview):
        _tell_preview(ctx, done, as_json=as_json)
    else:
        _tell_job(ctx, done, as_json=as_json)


def _consolidation(
    target: _Target, kept: Consolidations | None, models: Models | None, zone: tzinfo | None
) -> Consolidation:
    agents = _agents(target, kept, models)
    return Consolidation(target.wiki, agents, SystemClock(), zone, kept, target.redact)


def _agents(
    target: _Target, kept: Consolidations | None, models: Models | None
) -> Mapping[str, PageAgent]:
    """Return the agents by name; the built-in one needs `models`."""
    settings, config = target.settings, target.config
    prompt = settings.consolidation_prompt
    instructions = Template(prompt.parent, prompt.name)
    secrets = secret_values(config) if config else ()
    given = program_environment(environment(), secrets, target.redact)
    agents: dict[str, PageAgent] = {
        name: ProgramAgent(name, command, instructions, given)
        for name, command in settings.agent_cmds.items()
    }
    if config and models:
        names = ("consolidation/plan.md", "consolidation/page.md")
        plan, page = (Template(config.data_dir / "prompts", name) for name in names)
        prompts = WriterPrompts(instructions, plan, page)
        asked = BackgroundModels(models)
        agents[BUILTIN] = PageWriter(asked, prompts, kept, _progress, settings.model)
    return agents


def _progress(step: str) -> None:
    """Show the present step at a terminal."""
    if sys.stderr.isatty():
        click.echo(f"{harmless(step)} …", err=True)


def _material(
    target: _Target, kept: Consolidations | None, named: str, agent: str
) -> ConversationSource:
    """Return a conversation folder, or else a chat, as source. Raises: WintermuteError."""
    wiki = target.wiki
    if os.path.lexists(wiki.root / named) or os.path.lexists(named):
        return FolderSource(wiki.root, conversation_of(wiki, named), kept)
    if kept is None:
        raise WintermuteError(NO_CONVERSATION.format(named=named))
    if agent != BUILTIN:
        raise WintermuteError(ONLY_BUILTIN)
    return ChatSource(kept, named)


def _tell_job(ctx: click.Context, job: WikiJob | None, *, as_json: bool) -> None:
    if job is None:
        tell(ctx, {"job": None}, NOTHING_NEW, as_json=as_json)
        return
    if job.status != "applied" and not as_json:
        raise WintermuteError(f"{job.folder}: {job.status}: {job.reason}")
    lines = [f"{job.folder}: {job.status}", *(job.changed_files or [UNCHANGED])]
    lines += [f"{path} waits for you: see {job.folder}/report.md" for path in job.proposed]
    lines += [job.reason] if job.reason else []
    tell(ctx, job, *lines, as_json=as_json)
    ctx.exit(0 if job.status == "applied" else 1)


def _tell_preview(ctx: click.Context, done: Preview, *, as_json: bool) -> None:
    values: dict[str, Any] = {"diff": done.diff, "refused": done.refused}
    values["proposed"] = [page.change.path for page in done.verdict.proposed]
    tell(ctx, values, *harmless(done.diff).splitlines(), as_json=as_json)
    for page in done.verdict.proposed:
        line = f"{page.change.path} would wait for you: {page.reason}"
        click.echo(redacted(ctx, harmless(line)), err=True)
    if done.refused and not as_json:
        raise WintermuteError(f"nothing of this would be changed: {done.refused}")
    ctx.exit(1 if done.refused else 0)


@click.command("undo")
@click.argument("job", required=False)
@store_option
@reporting
def undo(ctx: click.Context, as_json: bool, job: str | None, store: Path | None) -> None:
    """Undo a job, or a save in the browser; later edits stay.

    JOB is the name of a folder in sleep/, or the id of a change set. Without it, the newest job is undone.

    Example: wintermute wiki undo 20260504-101500
    """
    target = _Target.for_command(ctx, store, need="none")
    now = local_now(ctx)
    if job and job.startswith("set_"):
        if not target.is_recorded:
            raise WintermuteError(NO_RECORD)
        ctx.invoke(undo_command("page"), batch=job, as_json=as_json)

    async def work() -> UndoneJob:
        async with target.opened(models=False) as (kept, _):
            recording = kept.record_undo if kept else None
            return await undo_job(target.wiki.files, job, now, recording)

    done = asyncio.run(work())
    gone = [change.path for change in done.changes if change.after is None]
    back = [change.path for change in done.changes if change.after is not None]
    values = {"job": done.job.name, "undoes": done.job.undoes, "back": back, "gone": gone}
    lines = [f"{path} is back" for path in back] + [f"{path} is gone" for path in gone]
    lines += [f"{path} was changed since: that stays" for path in done.kept]
    lines += _how_to_repeat(target.wiki, done.job.undoes or "")
    tell(ctx, values | {"kept": list(done.kept)}, *lines, as_json=as_json)


def _how_to_repeat(wiki: WikiStore, name: str) -> list[str]:
    """Return how to repeat a job: a chat is read only once, but a raw copy of that part exists."""
    job = read_job(wiki.files, name)
    if job is None or not job.raw_copy or "/" in job.conversation:
        return []
    return [AGAIN.format(raw=quote(job.raw_copy))]
