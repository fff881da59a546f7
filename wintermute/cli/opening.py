"""The start of a command: configuration, logs without its secrets, and the stores.

It works with a running daemon or without. Logs are for the person at 3 a.m.: one line per event.
"""

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import click

from wintermute.cli.options import CONFIG, REDACT, reporting, tell
from wintermute.clock import SystemClock
from wintermute.config.document import Problem
from wintermute.config.read import environment, read_with_gaps, unreadable
from wintermute.config.schema import Config
from wintermute.config.secrets import Redaction, secret_values
from wintermute.config.wiki import WikiSettings, daemon_wiki
from wintermute.db import open_database
from wintermute.errors import ConfigurationError
from wintermute.ids import new_id
from wintermute.llm.models import Models
from wintermute.matrix.kept_login import load
from wintermute.matrix.message_tags import secret_tag_key
from wintermute.matrix.signing import secret_seeds
from wintermute.memory.exchange import SCOPE
from wintermute.stores import Stores, open_stores

log = logging.getLogger(__name__)

FORMAT = "%(levelname)s %(message)s part=%(name)s"
DATABASE = "wintermute.db"
PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}
Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., Any])


class LogFormatter(logging.Formatter):
    """Formats a record; everything, tracebacks as well, passes through `redact`."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, redact: Callable[[str], str], *, journal: bool) -> None:
        super().__init__(FORMAT if journal else f"%(asctime)s {FORMAT}")
        self.converter = time.gmtime
        self._redact = redact
        self._journal = journal

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        """Return one line, whatever line ends a message has."""
        return "\\n".join(super().formatMessage(record).splitlines())

    def format(self, record: logging.LogRecord) -> str:
        text = self._redact(super().format(record))
        if not self._journal:
            return text
        priority = f"<{PRIORITIES.get(record.levelname, 5)}>"
        return "\n".join(priority + line for line in text.splitlines())


def configure_logging(
    level: str, redact: Callable[[str], str], environment: Mapping[str, str]
) -> None:
    """Log our own lines from `level` on, other libraries' from warnings on.

    At lower levels libraries log everything they send and receive: messages, keys, SQL. Nio's
    warnings of missing keys are left out, because we report those ourselves, once.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter(redact, journal="JOURNAL_STREAM" in environment))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("nio").setLevel(logging.ERROR)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # strangers could fill the log
    logging.getLogger("wintermute").setLevel(level.upper())
    sys.excepthook = _crashed


def _crashed(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Log a bug, so that its traceback shows no secret either."""
    log.critical("crashed error=%s", kind.__name__, exc_info=(kind, error, traceback))


def open_config(
    ctx: click.Context, *, level: str | None = "warning", spared: str | None = None
) -> Config:
    """Open the command's configuration and log at `level`; None: as configured.

    Secrets of the section `spared` may be missing.
    """
    config, missing = open_with_gaps(ctx, level=level)
    needed = [each for each in missing if each.key.partition(".")[0] != spared]
    if needed:
        raise unreadable(ctx.meta[CONFIG], needed)
    return config


def open_with_gaps(ctx: click.Context, *, level: str | None) -> tuple[Config, tuple[Problem, ...]]:
    """Open the configuration, and return the secrets it lacks."""
    config, missing = read_with_gaps(ctx.meta[CONFIG], environment())
    redact = Redaction((*secret_values(config), *_kept_login(config.data_dir / "matrix")))
    ctx.meta[REDACT] = redact
    configure_logging(level or config.log.level, redact, environment())
    return config, missing


def _kept_login(folder: Path) -> tuple[str, ...]:
    """Return the secrets of an earlier login. If it is unreadable, the commands that need it report that."""
    try:
        session = load(folder)
    except (ConfigurationError, OSError):
        session = None
    login = (session.access_token, session.pickle_key) if session else ()
    return (*login, *secret_seeds(folder), *secret_tag_key(folder))


def with_stores(ctx: click.Context, work: Callable[[Stores, Config], Awaitable[Result]]) -> Result:
    """Open the configuration and its stores, do the work, close them."""
    return with_models(ctx, lambda stores, config, _: work(stores, config))


def with_models(
    ctx: click.Context,
    work: Callable[[Stores, Config, Models], Awaitable[Result]],
    wiki: Callable[[Config], WikiSettings] = daemon_wiki,
    level: str = "warning",
) -> Result:
    """Open the models as well. `wiki`: its settings, and the model that works on it."""
    config = open_config(ctx, level=level, spared="matrix")

    async def opened() -> Result:
        async with opened_stores(config, wiki(config)) as (stores, models):
            return await work(stores, config, models)

    return asyncio.run(opened())


def embedder_starts() -> None:
    """Say at a terminal that the embedder is starting; a daemon's would be running already."""
    if sys.stderr.isatty():
        click.echo("Starting the embedding model. This takes a few seconds.", err=True)


@asynccontextmanager
async def opened_stores(
    config: Config, settings: WikiSettings
) -> AsyncIterator[tuple[Stores, Models]]:
    """Open the stores of a configuration, with this wiki, and the models.

    Raises: ConfigurationError if the data folder is missing.
    """
    folder, redact = config.data_dir, Redaction(secret_values(config))
    if not folder.is_dir():
        raise ConfigurationError(
            f"the data folder {folder} does not exist: make it with `wintermute init DIR`,"
            " or correct data_dir"
        )
    async with open_database(folder / DATABASE) as database:
        known = database, SystemClock(), new_id, redact, embedder_starts
        async with open_stores(config, settings, *known) as opened:
            yield opened


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a command: values for a program, lines for a person."""

    values: Any
    lines: Iterable[str]


def on_stores(work: Callable[..., Awaitable[Report]]) -> Callable[..., None]:
    """Make a command of a function on open stores; it prints its Report as lines or as JSON."""

    @reporting
    @wraps(work)
    def run(ctx: click.Context, /, as_json: bool, **given: Any) -> None:
        report = with_stores(ctx, lambda stores, _: work(stores, **given))
        tell(ctx, report.values, *report.lines, as_json=as_json)

    return run


def scope_option(text: str, *also: str) -> Callable[[Command], Command]:
    """Add the option `--scope`. Its form is checked; the scope need not exist yet."""

    def checked(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
        if value is None or value in also or SCOPE.fullmatch(value):
            return value
        raise click.BadParameter(" or ".join(["write person:@name:server", "room:!id", *also]))

    return click.option("--scope", callback=checked, help=text)


async def scope_of(stores: Stores, named: str | None) -> str:
    """Return the named scope; None: the owner's.

    A room's may be named by any room it has lived in (F-013).
    """
    return (await stores.known.moves()).canonical_scope(named or stores.owner.scope)
