"""The parts of `check` that lie on this machine: one fact each, with what to do about it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from zoneinfo import ZoneInfo

from wintermute.clock import Clock, SystemClock
from wintermute.db import open_database, prove_free
from wintermute.errors import ConfigurationError, WintermuteError
from wintermute.health.report import Fact
from wintermute.health.store import Health
from wintermute.prompt.instructions import Instructions
from wintermute.prompt.sections import unknown_tools
from wintermute.prompt.seeds import FALLBACK
from wintermute.templates import read_template, shipped_prompts

MB = 1024 * 1024
LOW = 500 * MB
FULL = 50 * MB


def data_folder(folder: Path) -> Fact:
    """There, ours, and nobody else's."""
    part = "data folder"
    if not folder.is_dir():
        return Fact(part, "fail", f"{folder} is no folder -> make it with `wintermute init DIR`")
    closed = next((path for path in _inside(folder) if not _is_ours(path)), None)
    if closed:
        return Fact(part, "fail", f"{closed} cannot be changed -> chown it to who runs Wintermute")
    mode = folder.stat().st_mode & 0o777
    if mode & 0o077:
        return Fact(part, "warn", f"others may look in (mode {mode:o}) -> chmod 700 {folder}")
    return Fact(part, "ok", str(folder))


def _inside(folder: Path) -> Iterator[Path]:
    yield folder
    yield from folder.glob("*")
    yield from folder.glob("*/*")


def _is_ours(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0))


def disk(folder: Path) -> Fact:
    """Room for the database to grow."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    text = f"{free // MB} MB free"
    if free < LOW:
        return Fact("disk", "fail" if free < FULL else "warn", f"{text} -> make room on this disk")
    return Fact("disk", "ok", text)


async def database(path: Path) -> Fact:
    """Whole, not from a newer version, and not locked by another program (F-008)."""
    if not path.exists():  # noqa: ASYNC240  one look, nothing else runs
        return Fact("database", "ok", "will be made at first start")
    try:
        async with open_database(path, read_only=True):
            await prove_free(path)
            return Fact("database", "ok", str(path))
    except WintermuteError as error:
        return Fact("database", "fail", str(error))


async def noticed(path: Path) -> list[Fact]:
    """What only the daemon sees: a bridge that writes for somebody and that it does not believe
    (F-005), and a key store that it cannot write (F-007).
    """
    if not path.exists():  # noqa: ASYNC240  as above
        return []
    try:
        async with open_database(path, read_only=True) as database:
            parts = await Health(database, SystemClock()).parts()
    except WintermuteError:
        return []  # told above
    return [
        Fact(part.part, part.state, part.detail)
        for part in parts
        if part.part == "bridge" or (part.part == "keys" and part.state == "fail")
    ]


def templates(folder: Path, language: str) -> Fact:
    """Every prompt file that is needed, with something in it that can be understood."""
    part = "prompts"
    needed = [name for name in shipped_prompts() if not name.startswith("SEED_")]
    seeds = [f"SEED_{language}.txt"] if (folder / f"SEED_{language}.txt").exists() else []
    try:
        for name in (*needed, FALLBACK, *seeds):
            read_template(folder, name)
        unknown = unknown_tools(Instructions(folder).sections())
    except ConfigurationError as error:
        return Fact(part, "fail", str(error))
    if unknown:
        lines = "; ".join(f"BASE_PROMPT.txt:{line}: unknown tool {tool}" for line, tool in unknown)
        return Fact(part, "warn", f"{lines} -> correct the name; the section is left out")
    if not (folder / f"SEED_{language}.txt").is_file():
        text = f"SEED_{language}.txt is missing, {FALLBACK} is used -> write it in {folder}"
        return Fact(part, "warn", text)
    return Fact(part, "ok", f"{len(needed) + 1} in {folder}")


def time_zone(name: str, clock: Clock) -> Fact:
    """What the clock on the wall says, so that a wrong zone is noticed."""
    here = clock.now().astimezone(ZoneInfo(name))
    return Fact("time zone", "ok", f"{name}, where it is {here:%Y-%m-%d %H:%M}")
