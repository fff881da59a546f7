"""`wintermute init`: makes the folder that a daemon starts from. It changes no existing file."""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from zoneinfo import ZoneInfo

import click

from wintermute.cli.interview import Interview, uninterrupted
from wintermute.cli.options import json_option
from wintermute.clock import SystemClock, host_zone
from wintermute.config.lock import NAME as LOCK
from wintermute.config.lock import NO_ROOM, holder
from wintermute.config.read import environment
from wintermute.config.schema import WIKI
from wintermute.config.starter import starter_config
from wintermute.errors import ConfigurationError, WintermuteError
from wintermute.files import write_new
from wintermute.matrix.kept_login import FILE, load, save
from wintermute.memory.core import CORE, EMPTY_CORE
from wintermute.memory.status import Machine, first_backend
from wintermute.templates import RUNTIME, shipped_prompts
from wintermute.wiki.store import WikiStore

SECRETS = ("password", "api-key", "access-token")
A_FILE = click.Path(path_type=Path)


@click.command("init")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--homeserver", help="Address or name of your homeserver.")
@click.option("--user", "user_id", help="Account of the bot, such as @bot:example.org.")
@click.option("--password-file", "password", type=A_FILE, help="A file with the bot's password.")
@click.option("--owner", help="Your own Matrix id.")
@click.option("--provider", "base_url", help="Model server: its address, or a name such as ollama.")
@click.option("--model", help="Name of the model.")
@click.option("--api-key-file", "api_key", type=A_FILE, help="A file with its API key.")
@click.option("--no-input", is_flag=True, help="Ask nothing and try nothing.")
@json_option
def command(folder: Path, as_json: bool, no_input: bool, **options: str | Path | None) -> None:
    """Make a folder with config.yaml and data/.

    In a terminal it asks for the options that you did not give, and tests each answer. It does not
    overwrite files.

    Example: wintermute init ~/wintermute
    """
    talk = Interview({name: _text(given) for name, given in options.items() if given})
    made: dict[Path, bool] = {}
    existed = folder.exists()
    try:
        is_asked = sys.stdin.isatty() and sys.stdout.isatty() and not (no_input or as_json)
        if is_asked and not os.path.lexists(folder / "config.yaml"):
            _refuse_used(folder)
            talk.ask_all()
        else:
            talk.take()
        with uninterrupted():
            made.update(_make(folder, talk))
    except BaseException as error:
        with uninterrupted():
            _undo([*([] if existed else [folder]), *(path for path, new in made.items() if new)])
            talk.undo()
        if isinstance(error, OSError):
            advice = "make room" if error.errno in NO_ROOM else "choose a folder of your own"
            message = f"cannot write {error.filename or folder}: {error.strerror}: {advice}"
            raise WintermuteError(message) from error
        raise
    if as_json:
        paths = [str(path) for path, new in made.items() if new]
        click.echo(json.dumps({"made": paths}, indent=2))
    else:
        click.echo("\n".join(_summary(folder, talk, made)))


def _text(given: str | Path) -> str:
    """Return an answer, or the secret in a file."""
    try:
        return given if isinstance(given, str) else given.read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{given} cannot be read as text ({error})") from error


def _refuse_used(folder: Path) -> None:
    """Refuse a folder that cannot be completed, before anybody types. Raises: ConfigurationError."""
    data = folder / "data"
    near = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    problem = "" if near.is_dir() and os.access(near, os.W_OK | os.X_OK) else f"write to {near}"
    if kept := load(data / "matrix"):
        problem = f"replace the login of {kept.user_id} in {data}"
    if (data / LOCK).exists() and holder(data) is not None:
        problem = f"change {data}, which a running Wintermute uses"
    for name in SECRETS:
        problem = f"replace {folder / name}" if os.path.lexists(folder / name) else problem
    if problem:
        raise ConfigurationError(f"init cannot {problem}: move it aside, or use another folder")


def _summary(folder: Path, talk: Interview, made: dict[Path, bool]) -> Iterator[str]:
    """Return at most ten lines, ending with what to do next."""
    config, first = folder / "config.yaml", first_backend(Machine.here())
    is_new = made.pop(config)
    yield f"{'made' if is_new else 'kept'}  {config}"
    new = sum(made.values())
    yield f"made  {new} files and folders beside it; {len(made) - new} were there already"
    if not is_new and talk.chosen:
        yield "The options were not used: this file stays as it is."
    if is_new:
        if first.why:
            yield f"Memories will be found by words alone, for {first.why}"
        zone = host_zone(environment())
        now = SystemClock().now().astimezone(ZoneInfo(zone))
        yield f"Time zone: {zone}, as this machine has it, where it is {now:%Y-%m-%d %H:%M}"
    yield "Next:"
    if is_new and "EDIT: " in config.read_text("utf-8"):
        yield f"  Edit the lines marked EDIT in {config}"
    if is_new and not talk.files.keys() & {"password", "access-token"}:
        yield "  export WINTERMUTE_PASSWORD=...       (the password of the bot's own account)"
    for verb in ("check", "run"):
        yield f"  wintermute {verb} --config {shlex.quote(str(config))}"
    if talk.session is not None:
        yield f"  Then invite {talk.session.user_id} to a chat in your client, and write to it."


def _make(folder: Path, talk: Interview) -> Iterator[tuple[Path, bool]]:
    """Make a new installation; yield each of its paths, and True if it was made now."""
    folder.mkdir(parents=True, exist_ok=True)
    data, config = folder / "data", folder / "config.yaml"
    known = first_backend(Machine.here()).chosen
    chosen = {**known, "timezone": host_zone(environment()), **talk.chosen}
    is_new = _write(config, starter_config(chosen, talk.backend))
    yield config, is_new
    for name, secret in talk.files.items() if is_new else ():
        yield folder / name, _write(folder / name, secret)
        if (folder / name).read_text("utf-8") != secret:
            raise ConfigurationError(f"{folder / name} holds something else: move it aside")
    files = {data / "prompts" / name: text for name, text in shipped_prompts().items()}
    for path in dict.fromkeys(
        (data, data / WIKI, data / "prompts", data / "skills", *(f.parent for f in files))
    ):
        yield path, _folder(path)
    files[data / CORE] = EMPTY_CORE
    for path, text in files.items():
        yield path, _write(path, text)
    store, today = WikiStore(data / WIKI), SystemClock().now().date()
    runtime = (data / "prompts" / RUNTIME).read_text("utf-8")
    for name, new in store.init(today, runtime).items():
        yield store.root / name, new
    if talk.session is not None:
        yield data / "matrix", _folder(data / "matrix")
        save(data / "matrix", talk.session)
        yield data / "matrix" / FILE, True


def _undo(paths: list[Path]) -> None:
    """Remove new files after a failure."""
    for path in reversed(paths):
        with suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink()


def _folder(path: Path) -> bool:
    is_new = not path.exists()
    path.mkdir(mode=0o700, exist_ok=True)
    return is_new


def _write(path: Path, text: str) -> bool:
    """Write the file, readable by its owner only. False if the name is taken."""
    try:
        write_new(path, text.encode())
    except FileExistsError:
        return False
    return True
