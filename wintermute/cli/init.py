"""`wintermute init`: the folder a daemon starts from. Nothing that exists is changed."""

import errno
import json
import os
from pathlib import Path
from zoneinfo import ZoneInfo

import click

from wintermute.cli.options import json_option
from wintermute.clock import SystemClock, host_zone
from wintermute.config.read import environment
from wintermute.config.schema import WIKI, starter_config
from wintermute.errors import WintermuteError
from wintermute.memory.core import CORE, EMPTY_CORE
from wintermute.memory.status import Machine, first_backend
from wintermute.templates import RUNTIME, shipped_prompts
from wintermute.wiki.store import WikiStore

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NEXT = """
Next:
  1. Edit the lines marked EDIT in {config}, and timezone if yours is another
  2. export WINTERMUTE_PASSWORD=...       (the password of the bot's own account)
  3. wintermute check --config {config}
  4. wintermute run --config {config}"""


@click.command("init")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@json_option
def command(folder: Path, as_json: bool) -> None:
    """Make a folder with config.yaml and data/.

    What is there already stays as it is; what is missing is added.

    Example: wintermute init ~/wintermute
    """
    config, first = folder / "config.yaml", first_backend(Machine.here())
    text = starter_config({**first.chosen, "timezone": (zone := host_zone(environment()))})
    try:
        made = {str(path): new for path, new in _make(folder, text)}
    except OSError as error:
        advice = "make room" if error.errno in NO_ROOM else "choose a folder of your own"
        raise WintermuteError(
            f"cannot write {error.filename or folder}: {error.strerror}: {advice}"
        ) from error
    if as_json:
        click.echo(json.dumps({"made": [path for path, new in made.items() if new]}, indent=2))
        return
    for path, new in made.items():
        click.echo(f"{'made' if new else 'kept'}  {path}")
    if first.why and made[str(config)]:
        click.echo(f"Memories will be found by words alone, for {first.why}")
    if made[str(config)]:
        now = SystemClock().now().astimezone(ZoneInfo(zone))
        click.echo(f"Time zone: {zone}, as this machine has it, where it is {now:%Y-%m-%d %H:%M}")
    click.echo(NEXT.format(config=config))


def _make(folder: Path, config: str) -> list[tuple[Path, bool]]:
    """Each path of a new installation, and whether it was made now."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "data"
    files = {data / "prompts" / name: text for name, text in shipped_prompts().items()}
    folders = dict.fromkeys((data, data / "prompts", data / "skills", *(f.parent for f in files)))
    made = [(folder / "config.yaml", _write(folder / "config.yaml", config))]
    made += [(path, _folder(path)) for path in folders]
    files[data / CORE] = EMPTY_CORE
    made += [(path, _write(path, text)) for path, text in files.items()]
    store, today = WikiStore(data / WIKI), SystemClock().now().date()
    runtime = (data / "prompts" / RUNTIME).read_text("utf-8")
    return made + [(store.root / path, new) for path, new in store.init(today, runtime).items()]


def _folder(path: Path) -> bool:
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def _write(path: Path, text: str) -> bool:
    """Make the file, readable by its owner only; False when something has its name already."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        path.unlink()  # else the next `init` would keep half a file
        raise
    return True
