"""Other programs that make pages: each works on a copy of the store, and what it leaves there is judged.

    store ─ copied ─▶ a folder of its own ─ program ─▶ what differs ─▶ changes, and objections
                                             ▲ the prompt on stdin, no shell, a group of processes,
                                               a time limit, without our secrets

Nothing of the copy counts by itself: the store is changed by us, later, page by page.
"""

import asyncio
import logging
import os
import shlex
import shutil
import signal
import stat
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from wintermute.config.secrets import Redaction
from wintermute.errors import ConfigurationError, FileUnusable, WintermuteError
from wintermute.files import ENTER, READ, locked, to_its_end
from wintermute.pages.page_lines import LineOrigins
from wintermute.pages.raw_material import Talk
from wintermute.templates import Template
from wintermute.text import clean
from wintermute.wiki.asked_lines import asked_lines, with_asked, without_asked
from wintermute.wiki.folder import FileChange, StoreFolder, told
from wintermute.wiki.links import INDEX, JOBS, PAGE_FOLDERS
from wintermute.wiki.page_jobs import WikiJob, text_at
from wintermute.wiki.pages import text_of
from wintermute.wiki.store import FOLDERS, WikiStore
from wintermute.wiki.verdict import StoreView

BUILTIN = "builtin"
CONVERSATION = "__CONVERSATION_PATH__"
"""Stands in the prompt for the raw copy, as a path in the store (W-061)."""
SECONDS = 1_800.0
MOST_OUTPUT = 1_000_000
"""Bytes that are kept of what a program prints to each of its outputs."""
DRAIN_SECONDS = 2.0
"""For what its processes have printed, once they are killed."""
MOST_DIFFERENCES = 500
"""Files: who changes more is not heard about each."""
OURS = ("WINTERMUTE_", "CATHEDRAL_", "CREDENTIALS_DIRECTORY")
"""How variables begin that are about us."""
COPY = "wintermute-pages-"
REPORT = "report.md"

log = logging.getLogger(__name__)

Inventory = Mapping[str, bytes]
"""A digest of each file by its path."""


@dataclass(frozen=True, slots=True)
class PageTask:
    """What is to be made into pages. `raw`: where its copy stands, or would."""

    talk: Talk
    raw: str
    job: WikiJob
    store: WikiStore
    view: StoreView
    today: date


@dataclass(frozen=True, slots=True)
class PageWork:
    """What an agent made of it. `plan`: the pages it named before; None: it has no plan.

    `objections`: what it did that may not be, besides the changes. `failed`: why it came to no end.
    """

    changes: tuple[FileChange, ...] = ()
    plan: frozenset[str] | None = None
    objections: tuple[str, ...] = ()
    failed: str = ""
    exit_code: int = 0
    stdout: str = ""
    stderr: str = ""
    report: str = ""
    lines: Mapping[str, LineOrigins] = field(default_factory=dict)
    """By path, where new lines came from, as far as it was told."""


class PageAgent(Protocol):
    """Whoever makes pages of a conversation."""

    async def pages(self, task: PageTask) -> PageWork:
        """Raises: WintermuteError where it could not even begin; ModelError."""
        ...


def command_line(template: str, values: Mapping[str, str]) -> list[str]:
    """The words of a command, with `{name}` filled in each: nothing in a value makes another word.

    Raises: ConfigurationError for a template that is none.
    """
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise ConfigurationError(f"wiki.agent_cmds: {template!r}: {error}") from error
    if not words:
        raise ConfigurationError("wiki.agent_cmds: a command is empty")
    for name, value in values.items():
        words = [word.replace(f"{{{name}}}", value) for word in words]
    return words


def program_environment(
    environment: Mapping[str, str], secrets: Sequence[str], redact: Redaction
) -> dict[str, str]:
    """The variables that a program may have: none that is ours, and none that holds a secret of ours.

    What is its own, such as the key of an account, stays: unless we were given the same one.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(OURS) and value not in secrets and redact(value) == value
    }


class _Output:
    """A pipe that a program prints to: the beginning is kept, the rest is read and thrown away."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._more = False
        self._out, self.into = os.pipe()

    async def drink(self) -> None:
        """Read until nobody can print there any more."""
        stream = asyncio.StreamReader()
        pipe = os.fdopen(self._out, "rb", 0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), pipe
        )
        try:
            while piece := await stream.read(65_536):
                room = MOST_OUTPUT - len(self._kept)
                self._kept += piece[:room]
                self._more = self._more or len(piece) > room
        finally:
            transport.close()

    def close(self) -> None:
        """Nobody will print there."""
        os.close(self._out)

    def printed(self) -> str:
        """What was kept."""
        said = clean(self._kept.decode("utf-8", "replace"))
        return f"{said}\n[cut off here: it went on]\n" if self._more else said


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended. `late`: it had to be ended."""

    exit_code: int
    stdout: str
    stderr: str
    late: bool


async def run(
    words: Sequence[str], folder: Path, given: str, environment: Mapping[str, str], seconds: float
) -> Ended:
    """Run a program with a group of processes of its own, of which none is left when this returns.

    Raises: WintermuteError when it cannot be started.
    """
    out, err = _Output(), _Output()
    process = await _started(words, folder, environment, out, err)
    late = False
    async with asyncio.TaskGroup() as group:
        parts = [
            group.create_task(part) for part in (out.drink(), err.drink(), _give(process, given))
        ]
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            late = True
        finally:
            _kill(process)
            await asyncio.shield(process.wait())
        await asyncio.wait(parts, timeout=DRAIN_SECONDS)
        for part in parts:
            part.cancel()  # who has left the group may hold its outputs for ever
    return Ended(process.returncode or 0, out.printed(), err.printed(), late)


async def _started(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    out: _Output,
    err: _Output,
) -> Process:
    try:
        return await asyncio.create_subprocess_exec(
            *words,
            cwd=folder,
            env=environment,
            stdin=PIPE,
            stdout=out.into,
            stderr=err.into,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        out.close()
        err.close()
        reason = error.strerror if isinstance(error, OSError) else error
        raise WintermuteError(f"{words[0]} cannot be started: {reason}") from error
    finally:
        os.close(out.into)
        os.close(err.into)


async def _give(process: Process, text: str) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # it does not want to know
        process.stdin.write(text.encode())
        await process.stdin.drain()
    process.stdin.close()


def _kill(process: Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def copy_store(root: Path, copy: Path) -> Inventory:
    """Copy a store without its jobs, hidden files and what is no plain file; what is there then.

    Raises: OSError.
    """
    found: dict[str, bytes] = {}
    for path, opened in _files(root):
        with os.fdopen(opened, "rb") as file:
            target = copy / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as written:
                shutil.copyfileobj(file, written)
            found[path] = _digest(target)
    return found


def _files(root: Path) -> Iterator[tuple[str, int]]:
    """Each plain file that is not hidden, opened, without those of jobs."""
    for path, name, folder in _entries(root):
        with suppress(OSError):
            opened = os.open(name, READ, dir_fd=folder)
            if stat.S_ISREG(os.fstat(opened).st_mode):
                yield path, opened
            else:
                os.close(opened)


def _entries(root: Path) -> Iterator[tuple[str, str, int]]:
    """All that is no folder and not hidden, by path, and by name in an open folder; not of jobs."""
    for at, folders, names, folder in os.fwalk(root, follow_symlinks=False):
        below = Path(at).relative_to(root).as_posix()
        links = [name for name in folders if stat.S_ISLNK(_mode(folder, name))]
        for name in (*names, *links):
            if not name.startswith("."):
                yield (name if below == "." else f"{below}/{name}"), name, folder
        folders[:] = [
            each
            for each in folders
            if not each.startswith(".") and not (below == "." and each == JOBS)
        ]


def _mode(folder: int, name: str) -> int:
    return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        digest = blake2b()
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.digest()


def differences(
    copy: StoreFolder, known: Inventory, store: StoreFolder
) -> tuple[tuple[FileChange, ...], tuple[str, ...]]:
    """What is another in a copy than it was: pages that changed, and what may not be (W-064)."""
    changes: list[FileChange] = []
    told: list[str] = []
    seen = set[str]()
    try:
        for path, name, folder in _entries(copy.root):
            seen.add(path)
            if not stat.S_ISREG(_mode(folder, name)):
                told.append(f"{path!r} is no plain file")
            elif path not in known or _digest(copy.root / path) != known[path]:
                _compare(path, copy, store, changes, told)
            if len(changes) + len(told) > MOST_DIFFERENCES:
                return (), (f"more than {MOST_DIFFERENCES} files were changed",)
    except (RecursionError, OSError) as error:
        return (), (f"what it left cannot be read: {error}",)
    told += [f"{path} was deleted" for path in sorted(known.keys() - seen)]
    return tuple(changes), tuple(told)


def _compare(
    path: str, copy: StoreFolder, store: StoreFolder, changes: list[FileChange], told: list[str]
) -> None:
    if not path.isprintable():
        told.append(f"{path!r} has a name that no link can hold")
        return
    if path != INDEX and path.partition("/")[0] not in PAGE_FOLDERS:
        told.append(f"{path!r} was changed: it is neither a page nor the index")
        return
    try:
        before, after = store.content(path), copy.content(path)
        was = None if before is None else before.decode()
        asked = asked_lines(store)
        changes.append(FileChange(path, was, with_asked(text_of(after or b""), was or "", asked)))
    except (FileUnusable, UnicodeDecodeError) as problem:
        told.append(f"{path!r} {problem}")


@asynccontextmanager
async def _folder_of_its_own() -> AsyncIterator[Path]:
    """A folder for a copy, gone in the end; one that a kill left is removed by whoever comes next."""
    await to_its_end(sweep_copies)
    copy = Path(await to_its_end(partial(tempfile.mkdtemp, prefix=COPY)))
    with locked(copy):
        try:
            yield copy
        finally:
            await to_its_end(partial(_remove, copy))


def sweep_copies() -> None:
    """Remove the copies of stores that a kill left."""
    for copy in Path(tempfile.gettempdir()).glob(f"{COPY}*"):
        with suppress(OSError):
            if copy.lstat().st_uid == os.getuid():
                with locked(copy, ENTER):
                    _remove(copy)


def _remove(copy: Path) -> None:
    """Also what somebody has locked up."""
    copy.chmod(0o700)
    for at, folders, _ in os.walk(copy):
        for name in folders:
            path = Path(at) / name
            if not path.is_symlink():
                path.chmod(0o700)
    try:
        shutil.rmtree(copy, ignore_errors=True)
    except RecursionError:
        log.warning("copy of pages not removed folder=%s reason=its folders are too deep", copy)


class ProgramAgent:
    """A program of the configuration, by its command line (W-061)."""

    def __init__(
        self,
        name: str,
        template: str,
        prompt: Template,
        environment: Mapping[str, str],
        seconds: float = SECONDS,
    ) -> None:
        """`environment`: the variables that it may have. Raises: ConfigurationError."""
        command_line(template, {})
        self._name = name
        self._template = template
        self._prompt = prompt
        self._environment = environment
        self._seconds = seconds

    async def pages(self, task: PageTask) -> PageWork:
        """Let it work on a copy. Raises: StoreUnusable; WintermuteError when it cannot be started."""
        async with _folder_of_its_own() as folder:
            copy, job = StoreFolder(folder), f"{JOBS}/{task.job.name or 'dry-run'}"
            known = await to_its_end(partial(_copied, task, folder, job))
            values = {"store": folder, "sleep": folder / job, "conversation": folder / task.raw}
            words = command_line(self._template, {name: str(path) for name, path in values.items()})
            prompt = self._prompt.text().replace(CONVERSATION, task.raw)
            ended = await run(words, folder, prompt, self._environment, self._seconds)
            said = (ended.stdout, ended.stderr, text_at(copy, f"{job}/{REPORT}") or "")
            if ended.late:
                why = f"{self._name} was not done after {self._seconds:g} s"
                return PageWork((), None, (), why, ended.exit_code, *said)
            if ended.exit_code:
                why = f"{self._name} ended with exit code {ended.exit_code}"
                return PageWork((), None, (), why, ended.exit_code, *said)
            found = await to_its_end(partial(differences, copy, known, task.store.files))
            return PageWork(found[0], None, found[1], "", 0, *said)


def _copied(task: PageTask, folder: Path, job: str) -> Inventory:
    with task.store.files.reading(), told(folder):
        known = dict(copy_store(task.store.root, folder))
        asked = asked_lines(task.store.files)
        for name in [*known] if asked else ():
            content = (folder / name).read_bytes()
            shown = without_asked(content.decode(errors="replace"), asked)
            if shown != content.decode(errors="replace"):
                (folder / name).write_bytes(shown.encode())
                known[name] = _digest(folder / name)
        for name in (*FOLDERS, job):
            (folder / name).mkdir(parents=True, exist_ok=True)
        if not (folder / task.raw).is_dir():  # nothing is kept of a dry run
            (folder / task.raw).mkdir(parents=True)
            for name, text in task.talk.files:
                path = folder / task.raw / name
                path.write_bytes(text.encode())
                known[f"{task.raw}/{name}"] = _digest(path)
        return known
