"""Conversations that become pages, and the way back: `wintermute wiki consolidate` and `undo`."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click

from wintermute.cli.opening import data_folder, open_config
from wintermute.cli.options import CONFIG, REDACT, redacted, reporting, tell
from wintermute.cli.wiki_store import settings_of, store_option
from wintermute.clock import Clock, SystemClock
from wintermute.config.read import environment
from wintermute.config.schema import Config
from wintermute.config.secrets import UNHIDDEN, Redaction, secret_values
from wintermute.config.wiki import WikiSettings, command_wiki, with_model
from wintermute.db import open_database
from wintermute.errors import ConfigurationError, WintermuteError
from wintermute.ids import new_id
from wintermute.llm.models import Models
from wintermute.night.agents import BUILTIN, PageAgent, ProgramAgent, without_secrets
from wintermute.night.consolidation import Consolidation, Preview
from wintermute.night.page_writer import PageModel, PageWriter, WriterPrompts
from wintermute.night.raw_material import (
    ChatTalk,
    Consolidations,
    FolderTalk,
    RawMaterial,
    conversation_at,
)
from wintermute.stores import Stores, closing
from wintermute.templates import Template
from wintermute.wiki.folder import StoreFolder, missing
from wintermute.wiki.jobs import WikiJob
from wintermute.wiki.store import WikiStore
from wintermute.wiki.taking_back import TakenBack, take_back

DATABASE = "wintermute.db"
UTC = "UTC"
ONLY_BUILTIN = "what was said in a chat is made into pages by the agent builtin only"
NOTHING_NEW = "Nothing was said since the last time."


@dataclass(frozen=True, slots=True)
class _Wiki:
    """Which store is meant, and what there is beside it. `config`: None for a store alone."""

    settings: WikiSettings
    config: Config | None
    redact: Redaction

    @property
    def zone(self) -> ZoneInfo:
        """Where days begin."""
        return ZoneInfo(self.config.timezone if self.config else UTC)

    @property
    def is_ours(self) -> bool:
        """Whether it is the store of the configuration, of which a database knows."""
        return self.config is not None and (
            self.config.wiki_store.resolve() == self.settings.store.resolve()
        )

    @asynccontextmanager
    async def opened(
        self, clock: Clock
    ) -> AsyncIterator[tuple[Consolidations | None, Models | None]]:
        """What is recorded, where this store is; and the models, where there is a configuration."""
        if self.config is None or not self.config.data_dir.is_dir():
            yield None, None
            return
        config, zone = self.config, self.config.timezone
        async with open_database(config.data_dir / DATABASE) as database:
            llm = with_model(config.llm, self.settings.model)
            stores = Stores.of(
                *(database, config.data_dir, config.owner, clock, new_id, self.redact),
                timezone=zone,
                memory=config.memory,
                wiki=config.wiki_store,
            )
            models = Models(llm, database, clock, new_id, zone, self.redact)
            async with aclosing(models), closing(stores):
                await models.recall()
                yield (Consolidations(stores, clock) if self.is_ours else None), models


def _wiki(ctx: click.Context, store: Path | None, *, needs_config: bool) -> _Wiki:
    """What a command is about. Raises: ConfigurationError; StoreMissing."""
    config = _config(ctx) if not needs_config else open_config(ctx, spared="matrix")
    if config and needs_config:
        data_folder(config)
    settings = (
        command_wiki(store, environment(), Path.cwd(), config)
        if config
        else settings_of(ctx, store)
    )
    if not WikiStore(settings.store).exists:
        raise WintermuteError(missing(settings.store))
    return _Wiki(settings, config, ctx.meta.get(REDACT, UNHIDDEN))


def _config(ctx: click.Context) -> Config | None:
    """The configuration, where there is one that can be used."""
    if not ctx.meta[CONFIG].exists():
        return None
    try:
        return open_config(ctx, spared="matrix")
    except ConfigurationError:
        return None


@click.command("consolidate")
@click.option(
    "--conversation",
    required=True,
    metavar="PATH|ROOM",
    help="A folder of messages, or a direct chat of yours.",
)
@click.option("--agent", default=BUILTIN, show_default=True, help="Who does it.")
@click.option("--dry-run", is_flag=True, help="Print what would be changed, and change nothing.")
@click.option("--wait", is_flag=True, help="Wait while another job is at work.")
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
    """Make pages of a conversation, or of what is new in a chat.

    Of a chat it takes what was said there since the last time.

    Example: wintermute wiki consolidate --conversation conversations/20260504-101500 --dry-run
    """
    wiki = _wiki(ctx, store, needs_config=agent == BUILTIN)

    async def work() -> WikiJob | Preview | None:
        clock = SystemClock()
        async with wiki.opened(clock) as (kept, models):
            agents = _agents(wiki, kept, models, agent)
            home = Consolidation(
                WikiStore(wiki.settings.store), agents, clock, wiki.zone, kept, wiki.redact
            )
            home.agent(agent)
            material = _material(wiki, kept, conversation, agent)
            if dry_run:
                return await home.preview(material, agent)
            return await home.consolidate(material, agent, wait=wait)

    done = asyncio.run(work())
    if isinstance(done, Preview):
        _tell_preview(ctx, done, as_json=as_json)
    else:
        _tell_job(ctx, done, as_json=as_json)


def _agents(
    wiki: _Wiki, kept: Consolidations | None, models: Models | None, wanted: str
) -> Mapping[str, PageAgent]:
    """Who can be asked; the files of the one that is built in are read only where it is `wanted`."""
    settings = wiki.settings
    instructions = _template(settings.consolidation_prompt)
    secrets = secret_values(wiki.config) if wiki.config else ()
    given = without_secrets(environment(), secrets, wiki.redact)
    agents: dict[str, PageAgent] = {
        name: ProgramAgent(name, command, instructions, given)
        for name, command in settings.agent_cmds.items()
    }
    if wanted == BUILTIN and wiki.config and models:
        folder = wiki.config.data_dir / "prompts"
        plan, page = (Template(folder, f"consolidation/{name}.md") for name in ("plan", "page"))
        model = PageModel(models, settings.model)
        agents[BUILTIN] = PageWriter(model, WriterPrompts(instructions, plan, page), kept)
    return agents


def _template(path: Path) -> Template:
    return Template(path.parent, path.name)


def _material(wiki: _Wiki, kept: Consolidations | None, named: str, agent: str) -> RawMaterial:
    root = wiki.settings.store
    folder = conversation_at(root, named)
    if folder is not None:
        return FolderTalk(root, folder)
    if kept is None:
        raise WintermuteError(f"there is no conversation {named}: name a folder of messages")
    if agent != BUILTIN:
        raise WintermuteError(ONLY_BUILTIN)
    return ChatTalk(kept, named)


def _tell_job(ctx: click.Context, job: WikiJob | None, *, as_json: bool) -> None:
    if job is None:
        tell(ctx, {"job": None}, NOTHING_NEW, as_json=as_json)
        return
    if job.status != "applied" and not as_json:
        raise WintermuteError(f"{job.folder}: {job.status}: {job.reason}")
    lines = [f"{job.folder}: {job.status}", *job.changed_files]
    lines += [f"{path} waits for you: see {job.folder}/report.md" for path in job.proposed]
    lines += [job.reason] if job.reason else []
    tell(ctx, asdict(job), *lines, as_json=as_json)
    ctx.exit(0 if job.status == "applied" else 1)


def _tell_preview(ctx: click.Context, done: Preview, *, as_json: bool) -> None:
    values: dict[str, Any] = {"diff": done.diff, "refused": done.refused}
    values["proposed"] = [page.change.path for page in done.verdict.proposed]
    tell(ctx, values, *done.diff.splitlines(), as_json=as_json)
    for page in done.verdict.proposed:
        told = f"{page.change.path} would wait for you: {page.reason}"
        click.echo(redacted(ctx, told), err=True)
    if done.refused and not as_json:
        raise WintermuteError(f"nothing of this would be changed: {done.refused}")
    ctx.exit(1 if done.refused else 0)


@click.command("undo")
@click.argument("job", required=False)
@store_option
@reporting
def undo(ctx: click.Context, as_json: bool, job: str | None, store: Path | None) -> None:
    """Take back what a job did; what was edited since stays.

    Without JOB the newest that is not taken back yet.

    Example: wintermute wiki undo 20260504-101500
    """
    wiki = _wiki(ctx, store, needs_config=False)

    async def work() -> TakenBack:
        clock = SystemClock()
        files = StoreFolder(wiki.settings.store)
        now = clock.now().astimezone(wiki.zone)
        if not wiki.is_ours or not (wiki.config and (wiki.config.data_dir / DATABASE).exists()):
            return await take_back(files, job, now)
        async with wiki.opened(clock) as (kept, _):
            return await take_back(files, job, now, kept.taking_back if kept else None)

    done = asyncio.run(work())
    gone = [change.path for change in done.changes if change.after is None]
    back = [change.path for change in done.changes if change.after is not None]
    values = {"job": done.job.name, "undoes": done.job.undoes, "back": back, "gone": gone}
    lines = [f"{path} is back" for path in back] + [f"{path} is gone" for path in gone]
    lines += [f"{path} was changed since: that stays" for path in done.kept]
    tell(ctx, values | {"kept": list(done.kept)}, *lines, as_json=as_json)
