"""Reading the configuration for a command, with logs that cannot show its secrets."""

from pathlib import Path

import click

from wintermute.cli.log import configure_logging
from wintermute.cli.options import CONFIG, REDACT
from wintermute.config.read import environment, read_config
from wintermute.config.schema import Config
from wintermute.config.secrets import redaction, secret_values
from wintermute.errors import ConfigurationError
from wintermute.matrix.marks import secret_mark_key
from wintermute.matrix.seeds import secret_seeds
from wintermute.matrix.session import load


def open_config(ctx: click.Context, *, level: str | None = "warning") -> Config:
    """The configuration this command was given. Logs at `level`; None: as the file says."""
    config = read_config(ctx.meta[CONFIG], environment())
    redact = redaction((*secret_values(config), *_kept_login(config.data_dir / "matrix")))
    ctx.meta[REDACT] = redact
    configure_logging(level or config.log.level, redact, environment())
    return config


def _kept_login(folder: Path) -> tuple[str, ...]:
    """The secrets of an earlier login. Whoever needs that login tells when it cannot be read."""
    try:
        session = load(folder)
    except (ConfigurationError, OSError):
        session = None
    login = (session.access_token, session.pickle_key) if session else ()
    return (*login, *secret_seeds(folder), *secret_mark_key(folder))
