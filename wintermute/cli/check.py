"""`wintermute check`: it tests every part, changes nothing, and says what to do."""

import asyncio
import dataclasses
import json
import os
import shutil
from collections.abc import Collection, Iterable
from contextlib import aclosing, suppress
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from zoneinfo import ZoneInfo

import click

from wintermute.answering import answering, fixed_request
from wintermute.cli.opening import embedder_starts, open_with_gaps
from wintermute.cli.options import CONFIG, redacted, reporting
from wintermute.clock import CheckedClock, SystemClock, host_zone, zone_doubt
from wintermute.config.lock import holder
from wintermute.config.read import BACKENDS, environment
from wintermute.config.schema import UNTOUCHED, Backend, Config, is_still_example
from wintermute.config.secrets import Redaction, secret_values
from wintermute.db import LONGEST_LOG, check_writable, is_missing, open_database
from wintermute.errors import (
    ConfigurationError,
    DatabaseOutdated,
    ModelError,
    ModelUnavailable,
    WebUnavailable,
    WintermuteError,
)
from wintermute.health.health import Health, StatusLine
from wintermute.ids import new_id
from wintermute.llm.context_windows import CUTS, compare_windows, server_window
from wintermute.llm.embeddings import open_embedder
from wintermute.llm.models import FRAME, Models
from wintermute.llm.probes import count_fixed_part, fits
from wintermute.llm.probes import probe as ask_model
from wintermute.llm.providers import remedy
from wintermute.llm.text_tool_calls import ModelQuirk, QuirkColumn
from wintermute.llm.tokens import Counted, TokenCounts
from wintermute.matrix.login import probe as ask_homeserver
from wintermute.matrix.message_tags import file_problems
from wintermute.memory.core import MEMORIES, Places
from wintermute.memory.status import NAME
from wintermute.messages import Request
from wintermute.night.night_status import night_status
from wintermute.prompt.assemble import unknown_tools
from wintermute.prompt.context_builder import FALLBACK, FILE, FILE_SMALL, Instructions, read_texts
from wintermute.prompt.file_checks import unusable_files
from wintermute.stores import Stores, closing
from wintermute.templates import read_template, shipped_prompts
from wintermute.terminal.screen import Output, TerminalSpeaker
from wintermute.web.door import EXPOSED, MISSING, address_of, is_installed, open_listener
from wintermute.web.door import PART as WEB
from wintermute.web.sessions import TOKEN, door_token
from wintermute.wiki.store import WikiStore
from wintermute.wiki.wiki_status import wiki_status
from wintermute.work.data_folder import DataFolder

MB = 1024 * 1024
LOW = 500 * MB
FULL = 50 * MB
HELD = "another program has been reading the database for a long time -> end it, or let it finish"
SPELLS = "it writes its calls as text -> set llm.backends.{name}.calls_as_text: true"
KEPT = (
    "it writes its calls as text -> `run` and `chat` will read them after their next start;"
    " set llm.backends.{name}.calls_as_text: true to fix that in the configuration"
)
"""The same, if the database can store it."""


def show(ctx: click.Context, facts: Iterable[StatusLine], *, as_json: bool) -> None:
    """Print the lines of a status. Exit with 1 if one of them is `fail`."""
    redacted_lines = [dataclasses.replace(line, text=redacted(ctx, line.text)) for line in facts]
    if as_json:
        rows = (dataclasses.asdict(line).items() for line in redacted_lines)
        given = [{name: value for name, value in line if value is not None} for line in rows]
        text = json.dumps(given, indent=2)
    else:
        text = "\n".join(f"{line.state:<4}  {line.name}: {line.text}" for line in redacted_lines)
    click.echo(text)
    ctx.exit(1 if any(line.state == "fail" for line in redacted_lines) else 0)


def data_folder(folder: Path) -> StatusLine:
    """Check that the folder is there, writable, and closed to others."""
    part = "data folder"
    if not folder.is_dir():
        return StatusLine(
            part, "fail", f"{folder} is no folder -> make it with `wintermute init DIR`"
        )
    inside = chain([folder], folder.glob("*"), folder.glob("*/*"))
    closed = next((path for path in inside if not _is_ours(path)), None)
    if closed:
        advice = f"{closed} cannot be changed -> chown it to the user who runs Wintermute"
        return StatusLine(part, "fail", advice)
    mode = folder.stat().st_mode & 0o777
    if mode & 0o077:
        return StatusLine(
            part, "warn", f"other users can read it (mode {mode:o}) -> chmod 700 {folder}"
        )
    return StatusLine(part, "ok", str(folder))


def _is_ours(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0))


def disk(folder: Path) -> StatusLine:
    """Check that the disk has room for the database to grow."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    text = f"{free // MB} MB free{' -> make room on this disk' if free < LOW else ''}"
    return StatusLine("disk", "fail" if free < FULL else "warn" if free < LOW else "ok", text)


def login_files(config: Config) -> list[StatusLine]:
    """Report lost files of the login, with what to do (F-055)."""
    problems = file_problems(config.data_dir / "matrix", config.matrix.user_id)
    return [StatusLine("login files", "fail", each) for each in problems]


async def database(path: Path) -> StatusLine:
    """Check that the database is whole, not too new, not locked (F-008), and its log short enough (F-068)."""
    if is_missing(path):
        return StatusLine("database", "none", "not tried: the first start makes it")
    try:
        async with open_database(path, read_only=True):
            await check_writable(path)
            log = path.with_name(f"{path.name}-wal")
            size = log.stat().st_size if log.exists() else 0
            if size > LONGEST_LOG:
                return StatusLine("database", "warn", f"{log} has {size >> 20} MB: {HELD}")
            return StatusLine("database", "ok", str(path))
    except DatabaseOutdated as error:
        return StatusLine("database", "warn", str(error))
    except WintermuteError as error:
        return StatusLine("database", "fail", str(error))


async def noticed(config: Config) -> list[StatusLine]:
    """Report problems that only the daemon sees: a bridge that impersonates people (F-005), a key
    store that cannot be written (F-007), own keys that the homeserver does not serve (F-070),
    memories or prompts that fit no window (M-092, L-090), and nights.
    """
    path, zone = config.data_dir / "wintermute.db", ZoneInfo(config.timezone)
    if not path.exists():
        return []
    try:
        async with open_database(path, read_only=True) as database:
            parts = await Health(database, SystemClock()).parts()
            nights = await night_status(
                database, SystemClock(), config.dreaming, zone, config.data_dir
            )
    except WintermuteError:
        return []  # reported by `database`
    return [nights] * (nights.state != "ok") + [
        StatusLine(part.part, part.state, part.detail)
        for part in parts
        if part.part == "bridge"
        or (part.state != "ok" and part.part.endswith(("keys", "prompt", MEMORIES)))
        or (part.state == "warn" and CUTS in part.detail)
    ]


def web_door(config: Config) -> list[StatusLine]:
    """Check the web pages: installed, and an address that is ours and free or used by a daemon (V-003)."""
    web = config.web
    if not web.enabled:
        return []
    if not is_installed():
        return [StatusLine(WEB, "fail", MISSING)]
    try:
        if holder(config.data_dir) is None:
            open_listener(web.host, web.port).close()
        if (config.data_dir / TOKEN).exists() or web.token is not None:
            door_token(config)
    except WebUnavailable as problem:
        return [StatusLine(WEB, "fail", str(problem))]
    if web.is_exposed:
        return [StatusLine(WEB, "warn", EXPOSED.format(host=web.host))]
    return [StatusLine(WEB, "ok", f"at {address_of(web)} while the daemon runs")]


def templates(config: Config) -> StatusLine:
    """Check that every needed prompt file has a valid text."""
    part, folder, language = "prompts", config.data_dir / "prompts", config.seed.language
    needed = [name for name in shipped_prompts() if not name.startswith("SEED_")]
    seeds = [f"SEED_{language}.txt"] if (folder / f"SEED_{language}.txt").exists() else []
    try:
        for name in (*needed, FALLBACK, *seeds, *map(str, config.wiki.prompts)):
            read_template(folder, name)
        unknown = [
            (name, *each)
            for name in (FILE, FILE_SMALL)
            for each in unknown_tools(Instructions(folder, name=name).sections())
        ]
    except ConfigurationError as error:
        return StatusLine(part, "fail", str(error))
    if unknown:
        lines = "; ".join(f"{name}:{line}: unknown tool {tool}" for name, line, tool in unknown)
        return StatusLine(part, "warn", f"{lines} -> correct the name; the section is left out")
    for size, name in (("full", FILE), ("small", FILE_SMALL)):
        read = size in config.llm.sizes
        outdated = Instructions(folder, name=name).outdated(config.context.layout) if read else None
        if outdated:
            return StatusLine(part, "warn", outdated)
    if not (folder / f"SEED_{language}.txt").is_file():
        text = f"SEED_{language}.txt is missing, {FALLBACK} is used -> write it in {folder}"
        return StatusLine(part, "warn", text)
    return StatusLine(part, "ok", f"{len(needed) + 1} in {folder}")


@click.command("check")
@click.option(
    "--login", is_flag=True, help="Try the password even if the bot is logged in already."
)
@reporting
def command(ctx: click.Context, as_json: bool, login: bool) -> None:
    """Test every part of the setup, and say what to fix.

    It asks each model two tiny questions, and the model must call a tool. It tries the password
    only before the first login, and logs out again at once. It changes nothing else, but notes how
    a model writes its calls and counts tokens. `none` marks a part that the first start makes.
    The exit code is 1 if a part fails, and 2 if the configuration cannot be read.

    Example: wintermute check --config ~/wintermute/config.yaml
    """
    config, missing = open_with_gaps(ctx, level="error")
    path = str(ctx.meta[CONFIG])
    problems = [f"{path}:{problem}" for problem in missing]
    problems += [f"{path}: {UNTOUCHED}"] if is_still_example(config) else []
    facts = [StatusLine("config", "fail", problem) for problem in problems]
    facts = facts or [StatusLine("config", "ok", path)]
    lacking = {problem.key.removesuffix(".api_key") for problem in missing}
    show(ctx, facts + asyncio.run(_probe(config, lacking, login=login)), as_json=as_json)


async def _probe(config: Config, lacking: Collection[str], *, login: bool) -> list[StatusLine]:
    """Check all parts, except models that lack a secret; `lacking` has their keys."""
    seconds, roles = config.loop.max_seconds, dataclasses.astuple(config.llm.roles)
    # The local time, so that people notice a wrong zone.
    here = SystemClock().now().astimezone(ZoneInfo(config.timezone))
    time = f"{config.timezone}, where it is {here:%Y-%m-%d %H:%M}"
    doubt = zone_doubt(config.timezone, host_zone(environment()), here)
    path = config.data_dir / "wintermute.db"
    fixed = await _fixed_request(config)
    embeds = config.memory.embeddings.backend
    chatting = {n for n in config.llm.backends if n != embeds or any(n in each for each in roles)}
    models = [
        found
        for name, backend in config.llm.backends.items()
        if name in chatting and f"{BACKENDS}.{name}" not in lacking
        for found in await _model(name, backend, fixed, seconds, path)
    ]
    files, asked = login_files(config), await _homeserver(config, login=login)
    return [
        data_folder(config.data_dir),
        disk(config.data_dir),
        await database(config.data_dir / "wintermute.db"),
        templates(config),
        *unusable_files(Places(config.data_dir, config.owner)),
        StatusLine("time zone", "warn" if doubt else "ok", f"{time}{doubt}"),
        await _memory(config),
        wiki_status(WikiStore(config.wiki_store), ZoneInfo(config.timezone)),
        *models,
        *web_door(config),
        *(each for each in files if not any(each.text in told.text for told in asked)),
        *asked,
        *await noticed(config),
    ]


async def _fixed_request(config: Config) -> Request | None:
    """Return the fixed part of every question; None if another line says why there is none.

    The tools get stores in a temporary folder, so that nothing is written to the data folder.
    """
    clock, zone, redact = SystemClock(), config.timezone, Redaction(secret_values(config))
    try:
        texts = read_texts(config.data_dir / "prompts", config.opening, wiki=config.wiki)
        with TemporaryDirectory(prefix="wintermute-") as folder:
            async with open_database(Path(folder, "wintermute.db")) as opened:
                stores = Stores.of(
                    *(opened, config.data_dir, config.owner, clock, new_id),
                    timezone=zone,
                    memory=config.memory,
                    wiki=config.wiki_store,
                )
                speaker, checked = TerminalSpeaker(Output(lambda: None)), CheckedClock(clock)
                async with aclosing(Models(config.llm, opened, clock, new_id, zone)) as models:
                    own = DataFolder(config, stores, models, texts, checked, redact)
                    fixed = await fixed_request(own, answering(own, speaker).toolbox)
    except (WintermuteError, OSError):
        return None
    return dataclasses.replace(fixed, messages=tuple(redact.tree(fixed.messages, FRAME)))


async def _memory(config: Config) -> StatusLine:
    """Test the search in memories on an empty database, so that nothing is written to the data folder."""
    clock, zone = SystemClock(), config.timezone
    try:
        with TemporaryDirectory(prefix="wintermute-") as folder:
            async with (
                open_database(Path(folder, "wintermute.db")) as opened,
                aclosing(Models(config.llm, opened, clock, new_id, zone)) as models,
                closing(
                    Stores.of(
                        *(opened, Path(folder), config.owner, clock, new_id),
                        timezone=zone,
                        memory=config.memory,
                        embedder=open_embedder(config.memory, models, clock, embedder_starts),
                    )
                ) as stores,
            ):
                return await stores.memory_status.probe()
    except (WintermuteError, OSError) as problem:
        return StatusLine(NAME, "fail", str(problem))


async def _model(
    name: str, backend: Backend, fixed: Request | None, seconds: float, path: Path
) -> tuple[StatusLine, ...]:
    part = f"model {name}"
    try:
        probed = await ask_model(name, backend, seconds)
        answered = StatusLine(part, probed.state, probed.report)
        if backend.calls_as_text is None:
            kept = await _keep(path, backend, "text_tool_calls", probed.spells)
            advice = (KEPT if kept else SPELLS).format(name=name)
            if probed.spells:
                answered = StatusLine(part, "warn", f"{probed.report}; {advice}")
        await _keep(path, backend, "thinks_aloud", probed.aloud)
    except ModelUnavailable as error:
        advice = f" -> see that it runs, and check base_url of {name} in config.yaml"
        return (StatusLine(part, "fail", f"{error}{await remedy(backend) or advice}"),)
    except ModelError as error:
        return (StatusLine(part, "fail", f"{error}{await remedy(backend)}"),)
    return (answered, *await _window(name, backend, fixed, seconds, path))


async def _window(
    name: str, backend: Backend, fixed: Request | None, seconds: float, path: Path
) -> tuple[StatusLine, ...]:
    """Check that the window is as large as configured, and large enough for the fixed part."""
    part, found = f"window of {name}", []
    if fixed is not None:
        try:
            counts = await _counts(
                path, backend, await count_fixed_part(name, backend, fixed, seconds)
            )
            took = fits(name, backend, fixed, counts)
            found.append(StatusLine(part, took.state, took.text))
        except ModelError as error:
            found.append(StatusLine(part, "fail", str(error)))
    if said := await server_window(backend):  # the question above has loaded the model
        beside = compare_windows(name, backend, said)
        found.append(StatusLine(part, beside.state, beside.text))
    return tuple(found)


# The next two store their results for the daemon, if there is a writable database of this version.


async def _counts(path: Path, backend: Backend, now: Counted) -> Counted:
    """Return the token counts of a server: as just measured, else as stored."""
    is_measured, asked = now.measured(1) is not None, (backend.model, backend.base_url)
    if not path.exists():  # noqa: ASYNC240  one look, nothing else runs
        return now
    with suppress(WintermuteError):
        async with open_database(path, read_only=True) as database:
            before = await TokenCounts(database).known(*asked)
        if not is_measured or before == now:
            return before
        async with open_database(path) as database, database.transaction() as tx:
            await TokenCounts(database).found(tx, *asked, now)
    return now


async def _keep(path: Path, backend: Backend, habit: QuirkColumn, has: bool | None) -> bool:
    """Store a model's habit, if it is known. True if it is stored now."""
    asked = habit, backend.model, backend.base_url
    if has is None or not path.exists():  # noqa: ASYNC240  one look, nothing else runs
        return False
    with suppress(WintermuteError):
        async with open_database(path, read_only=True) as database:
            if await ModelQuirk(database, SystemClock(), *asked).known() == has:
                return True
        async with open_database(path) as database:
            await ModelQuirk(database, SystemClock(), *asked).found(has=has)
            return True
    return False


async def _homeserver(config: Config, *, login: bool) -> tuple[StatusLine, ...]:
    folder, now = config.data_dir / "matrix", SystemClock().now()
    try:
        return await ask_homeserver(config.matrix, folder, now, login=login)
    except WintermuteError as error:
        return (StatusLine("matrix", "fail", str(error)),)
