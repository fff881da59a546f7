"""Agents: other programs that write pages. Each works on a copy of the wiki, which is then compared.

    store ─ copied ─▶ a folder of its own ─ program ─▶ differences ─▶ changes, and objections
                                             ▲ the prompt on stdin, no shell, a group of processes,
                                               a time limit, without Wintermute's secrets

Files in the copy have no effect by themselves: the wiki is changed later, page by page, by Wintermute.
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
from wintermute.files import ENTER, READ, locked, run_uncancelled
from wintermute.pages.page_lines import LineOrigins
from wintermute.pages.sources import SourceTranscript
from wintermute.templates import Template
from wintermute.text import clean
from wintermute.wiki.folder import FileChange, StoreFolder, disk_errors
from wintermute.wiki.links import INDEX, JOBS, PAGE_FOLDERS
from wintermute.wiki.page_jobs import WikiJob, text_at
from wintermute.wiki.pages import text_of
from wintermute.wiki.store import FOLDERS, WikiStore
from wintermute.wiki.verdict import StoreView
from wintermute.wiki.withheld_lines import with_withheld, withheld_lines, without_withheld

BUILTIN = "builtin"
CONVERSATION = "__CONVERSATION_PATH__"
"""Placeholder in the prompt for the path of the raw copy in the wiki (W-061)."""
SECONDS = 1_800.0
MOST_OUTPUT = 1_000_000
"""Bytes kept of each output of a program."""
DRAIN_SECONDS = 2.0
"""Time to read remaining output after a program's processes were killed."""
MOST_DIFFERENCES = 500
"""Changed files up to which each is reported."""
OURS = ("WINTERMUTE_", "CATHEDRAL_", "CREDENTIALS_DIRECTORY")
"""Prefixes of environment variables that belong to Wintermute."""
COPY = "wintermute-pages-"
REPORT = "report.md"

log = logging.getLogger(__name__)

Inventory = Mapping[str, bytes]
"""Digest of each file by its path."""


@dataclass(frozen=True, slots=True)
class PageTask:
    """Input of an agent. `raw`: path of the raw copy, which a dry run does not write."""

    transcript: SourceTranscript
    raw: str
    job: WikiJob
    store: WikiStore
    view: StoreView
    today: date


@dataclass(frozen=True, slots=True)
class PageWork:
    """Result of an agent. `plan`: the pages that it announced; None: it makes no plan.

    `objections`: forbidden changes. `failed`: why the agent did not finish.
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
    """Origins of new lines by path, as far as the agent reported them."""


class PageAgent(Protocol):
    """Writer of pages from a conversation."""

    async def pages(self, task: PageTask) -> PageWork:
        """Write pages. Raises: WintermuteError if it cannot start; ModelError."""
        ...


def command_line(template: str, values: Mapping[str, str]) -> list[str]:
    """Split a command and fill in `{name}` in each word, so that a value never adds a word.

    Raises: ConfigurationError for an invalid template.
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
    """Return the environment for a program, without Wintermute's own variables and secrets.

    Its own secrets, such as an account's key, stay, unless Wintermute's configuration holds the same one.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(OURS) and value not in secrets and redact(value) == value
    }


class _Output:
    """Pipe for a program's output: the beginning is kept, the rest is read and discarded."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._more = False
        self._out, self.into = os.pipe()

    async def drain(self) -> None:
        """Read until all writers have closed the pipe."""
        stream = asyncio.StreamReader()
        pipe = os.fdopen(self._out, "rb", 0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), pipe
        )
        try:
            while chunk := await stream.read(65_536):
                room = MOST_OUTPUT - len(self._kept)
                self._kept += chunk[:room]
                self._more = self._more or len(chunk) > room
        finally:
            transport.close()

    def close(self) -> None:
        """Close a pipe that no program will write to."""
        os.close(self._out)

    def printed(self) -> str:
        """Return the kept output."""
        said = clean(self._kept.decode("utf-8", "replace"))
        return f"{said}\n[the rest was cut off]\n" if self._more else said


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Result of a program. `late`: it was killed after its time limit."""

    exit_code: int
    stdout: str
    stderr: str
    late: bool


async def run_program(
    words: Sequence[str], folder: Path, given: str, environment: Mapping[str, str], seconds: float
) -> ProgramResult:
    """Run a program in its own process group, and kill what is left of the group at the end.

    Raises: WintermuteError if it cannot be started.
    """
    out, err = _Output(), _Output()
    process = await _start(words, folder, environment, out, err)
    late = False
    async with asyncio.TaskGroup() as group:
        parts = [
            group.create_task(part) for part in (out.drain(), err.drain(), _feed(process, given))
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
            part.cancel()  # a process that left the group may keep its outputs open
    return ProgramResult(process.returncode or 0, out.printed(), err.printed(), late)


async def _start(
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


async def _feed(process: Process, text: str) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # it does not read its input
        process.stdin.write(text.encode())
        await process.stdin.drain()
    process.stdin.close()


def _kill(process: Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def copy_store(root: Path, copy: Path) -> Inventory:
    """Copy a store's plain files without jobs and hidden files; return their digests.

    Raises: OSError.
    """
    digests: dict[str, bytes] = {}
    for path, opened in _files(root):
        with os.fdopen(opened, "rb") as file:
            target = copy / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as written:
                shutil.copyfileobj(file, written)
            digests[path] = _digest(target)
    return digests


def _files(root: Path) -> Iterator[tuple[str, int]]:
    """Open each plain file that is not hidden and belongs to no job."""
    for path, name, folder in _entries(root):
        with suppress(OSError):
            opened = os.open(name, READ, dir_fd=folder)
            if stat.S_ISREG(os.fstat(opened).st_mode):
                yield path, opened
            else:
                os.close(opened)


def _entries(root: Path) -> Iterator[tuple[str, str, int]]:
    """Yield path, name and open folder of each file or link that is not hidden and belongs to no job."""
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
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.digest()


def differences(
    copy: StoreFolder, known: Inventory, store: StoreFolder
) -> tuple[tuple[FileChange, ...], tuple[str, ...]]:
    """Compare a copy with its inventory: return changed pages, and forbidden changes (W-064)."""
    changes: list[FileChange] = []
    objections: list[str] = []
    seen = set[str]()
    try:
        for path, name, folder in _entries(copy.root):
            seen.add(path)
            if not stat.S_ISREG(_mode(folder, name)):
                objections.append(f"{path!r} is no plain file")
            elif path not in known or _digest(copy.root / path) != known[path]:
                _compare(path, copy, store, changes, objections)
            if len(changes) + len(objections) > MOST_DIFFERENCES:
                return (), (f"more than {MOST_DIFFERENCES} files were changed",)
    except (RecursionError, OSError) as error:
        return (), (f"its results cannot be read: {error}",)
    objections += [f"{path} was deleted" for path in sorted(known.keys() - seen)]
    return tuple(changes), tuple(objections)


def _compare(
    path: str, copy: StoreFolder, store: StoreFolder, changes: list[FileChange], problems: list[str]
) -> None:
    if not path.isprintable():
        problems.append(f"{path!r} has a name that no link can hold")
        return
    if path != INDEX and path.partition("/")[0] not in PAGE_FOLDERS:
        problems.append(f"{path!r} was changed: it is neither a page nor the index")
        return
    try:
        before, after = store.content(path), copy.content(path)
        was = None if before is None else before.decode()
        asked = withheld_lines(store)
        changes.append(
            FileChange(path, was, with_withheld(text_of(after or b""), was or "", asked))
        )
    except (FileUnusable, UnicodeDecodeError) as problem:
        problems.append(f"{path!r} {problem}")


@asynccontextmanager
async def _copy_folder() -> AsyncIterator[Path]:
    """Create a folder for a copy and remove it at the end; folders left by a kill are removed first."""
    await run_uncancelled(sweep_copies)
    copy = Path(await run_uncancelled(partial(tempfile.mkdtemp, prefix=COPY)))
    with locked(copy):
        try:
            yield copy
        finally:
            await run_uncancelled(partial(_remove, copy))


def sweep_copies() -> None:
    """Remove copies of stores that were left by a kill."""
    for copy in Path(tempfile.gettempdir()).glob(f"{COPY}*"):
        with suppress(OSError):
            if copy.lstat().st_uid == os.getuid():
                with locked(copy, ENTER):
                    _remove(copy)


def _remove(copy: Path) -> None:
    """Remove a copy, including folders without permissions."""
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
    """Agent that runs a configured program by its command line (W-061)."""

    def __init__(
        self,
        name: str,
        template: str,
        prompt: Template,
        environment: Mapping[str, str],
        seconds: float = SECONDS,
    ) -> None:
        """`environment`: variables for the program. Raises: ConfigurationError."""
        command_line(template, {})
        self._name = name
        self._template = template
        self._prompt = prompt
        self._environment = environment
        self._seconds = seconds

    async def pages(self, task: PageTask) -> PageWork:
        """Run the program on a copy. Raises: StoreUnusable; WintermuteError if it cannot be started."""
        async with _copy_folder() as folder:
            copy, job = StoreFolder(folder), f"{JOBS}/{task.job.name or 'dry-run'}"
            known = await run_uncancelled(partial(_copy_for, task, folder, job))
            values = {"store": folder, "sleep": folder / job, "conversation": folder / task.raw}
            words = command_line(self._template, {name: str(path) for name, path in values.items()})
            prompt = self._prompt.text().replace(CONVERSATION, task.raw)
            ended = await run_program(words, folder, prompt, self._environment, self._seconds)
            outputs = (ended.stdout, ended.stderr, text_at(copy, f"{job}/{REPORT}") or "")
            if ended.late:
                why = f"{self._name} was not done after {self._seconds:g} s"
                return PageWork((), None, (), why, ended.exit_code, *outputs)
            if ended.exit_code:
                why = f"{self._name} ended with exit code {ended.exit_code}"
                return PageWork((), None, (), why, ended.exit_code, *outputs)
            found = await run_uncancelled(partial(differences, copy, known, task.store.files))
            return PageWork(found[0], None, found[1], "", 0, *outputs)


def _copy_for(task: PageTask, folder: Path, job: str) -> Inventory:
    with task.store.files.reading(), disk_errors(folder):
        known = dict(copy_store(task.store.root, folder))
        withheld = withheld_lines(task.store.files)
        for name in [*known] if withheld else ():
            content = (folder / name).read_bytes()
            shown = without_withheld(content.decode(errors="replace"), withheld)
            if shown != content.decode(errors="replace"):
                (folder / name).write_bytes(shown.encode())
                known[name] = _digest(folder / name)
        for name in (*FOLDERS, job):
            (folder / name).mkdir(parents=True, exist_ok=True)
        if not (folder / task.raw).is_dir():  # a dry run has no raw copy in the store
            (folder / task.raw).mkdir(parents=True)
            for name, text in task.transcript.files:
                path = folder / task.raw / name
                path.write_bytes(text.encode())
                known[f"{task.raw}/{name}"] = _digest(path)
        return known
