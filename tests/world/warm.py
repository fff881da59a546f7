"""An interpreter that has the whole program imported, and forks a real process for each start of it.

    with Interpreter() as python:
        process = await python.start("--config", "config.yaml", "run")

What is forked has a pid, descriptors, a folder and an environment of its own, and is killed and
waited for like any other; only its imports are paid for already. What a process imports, costs or
inherits is tested with one that was not forked.
"""

import asyncio
import ctypes
import gc
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Self

import wintermute
from tests.world.clock import WITHIN
from tests.world.launch import begin
from wintermute.matrix.signing import SEED_BYTES, signature

Json = dict[str, Any]
ROOT = Path(__file__).parent.parent.parent
LAZY = (
    "openai",
    *("httpcore2", "truststore", "anyio._backends._asyncio", "anyio.streams.tls"),
    *("concurrent.futures.thread", "prompt_toolkit", "icalendar"),
)
"""What the program imports when it first needs it, beside its own modules."""
NUMBER = struct.Struct("i")
CAPABILITIES = 0x20080522
"""The version of what `capset` is given: three sets of 64 bits."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and what it wrote."""

    returncode: int
    stdout: bytes
    stderr: bytes


class Process:
    """One forked process, with what Bot asks of asyncio's."""

    def __init__(
        self,
        pid: int,
        status: int,
        stdin: IO[bytes] | None = None,
        stderr: asyncio.StreamReader | None = None,
    ) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = stdin
        self.stderr = stderr
        self._status = status
        self._ended = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(status, self._read)

    def _read(self) -> None:
        asyncio.get_running_loop().remove_reader(self._status)
        try:
            self.returncode = number(self._status)
            self._ended.set_result(self.returncode)
        except InterpreterGone as error:
            self._ended.set_exception(error)
        finally:
            os.close(self._status)

    async def wait(self) -> int:
        """Wait for its end; its exit code, negative for a signal."""
        code: int = await asyncio.shield(self._ended)
        return code

    def send_signal(self, signum: int) -> None:
        """Signal it, unless it is gone."""
        if not self._ended.done() and not select.select([self._status], [], [], 0)[0]:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """End it as a crash would."""
        self.send_signal(signal.SIGKILL)


class InterpreterGone(Exception):
    """The warm interpreter died: what came before says why, every later start fails for it."""

    def __init__(self) -> None:
        super().__init__("the warm interpreter of this worker is gone; see what ended it")


class Interpreter:
    """The end that tests hold. The interpreter leaves when this is closed, or gone."""

    def __init__(self, program: Path = ROOT) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.world.warm", str(theirs.fileno())],
                cwd=program,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._control.close()
        self._process.wait()

    async def start(self, *words: str, trigger: Json | None = None) -> Process:
        """Start the program on a lifeline, to die at `trigger` if one is given."""
        stdin, lifeline = os.pipe()
        reading, stderr = os.pipe()
        files = stdin, stderr, stderr
        pid, status = self._fork(words, files, trigger=trigger, lifeline=True)
        os.close(stdin)
        os.close(stderr)
        errors = asyncio.StreamReader(limit=2**24)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(errors), os.fdopen(reading, "rb")
        )
        return Process(pid, status, os.fdopen(lifeline, "wb"), errors)

    async def command(self, *words: str, given: bytes = b"", **more: Any) -> Ended:
        """Run a command to its end while the loop goes on; `more` as for `run`."""
        with opened(given) as files:
            process = Process(*self._fork(words, files.numbers, **more))
            try:
                async with asyncio.timeout(WITHIN):
                    code = await process.wait()
            except BaseException:
                process.kill()
                await process.wait()
                raise
            return files.ended(code)

    def run(self, *words: str, given: bytes = b"", **more: Any) -> Ended:
        """Run a command to its end, in this folder and environment unless `cwd` and `env` say else."""
        with opened(given) as files:
            pid, status = self._fork(words, files.numbers, **more)
            if not select.select([status], [], [], WITHIN)[0]:
                os.kill(pid, signal.SIGKILL)
            code = number(status)
            os.close(status)
            return files.ended(code)

    def _fork(
        self,
        words: Sequence[str],
        files: tuple[int, int, int],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        trigger: Json | None = None,
        lifeline: bool = False,
    ) -> tuple[int, int]:
        """The pid, and where the exit code will come; `files` are its first three."""
        status, theirs = os.pipe()
        order = {
            "words": words,
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),  # noqa: TID251  as a child has it
            "trigger": trigger,
            "lifeline": lifeline,
        }
        try:
            socket.send_fds(self._control, [json.dumps(order).encode() + b"\n"], [*files, theirs])
        except OSError as error:
            os.close(status)
            raise InterpreterGone from error
        finally:
            os.close(theirs)
        return number(status), status


@dataclass(frozen=True, slots=True)
class Files:
    """What a command reads and writes."""

    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Their descriptors."""
        return self.stdin.fileno(), self.stdout.fileno(), self.stderr.fileno()

    def ended(self, code: int) -> Ended:
        """What was written, for a command that ended so."""
        self.stdout.seek(0)
        self.stderr.seek(0)
        return Ended(code, self.stdout.read(), self.stderr.read())


@contextmanager
def opened(given: bytes) -> Iterator[Files]:
    """Files for a command that reads this."""
    file = tempfile.TemporaryFile
    with file() as stdin, file() as stdout, file() as stderr:
        stdin.write(given)
        stdin.seek(0)
        yield Files(stdin, stdout, stderr)


def number(pipe: int) -> int:
    """The next number that comes through a pipe."""
    came = os.read(pipe, NUMBER.size)
    if not came:
        raise InterpreterGone
    [found] = NUMBER.unpack(came)
    return int(found)


def modules() -> list[str]:
    """The program's own modules, by their names."""
    found = pkgutil.walk_packages(wintermute.__path__, "wintermute.")
    return [module.name for module in found if not module.name.endswith("__main__")]


def warm_up() -> None:
    """Import all that the program may."""
    for name in (*modules(), *LAZY):
        import_module(name)
    signature({}, bytes(SEED_BYTES))  # loads the curve, of which each first start would take 40 ms
    gc.collect()
    gc.freeze()  # else each child copies what it only looks at


def serve(control: socket.socket) -> Json:
    """Fork for each order that comes. Returns in what was forked only, with its order."""
    children: dict[int, int] = {}
    died = deaths()
    while True:
        ready, _, _ = select.select([control.fileno(), died], [], [])
        if died in ready:
            os.read(died, 4096)
            bury(children)
        if control.fileno() not in ready:
            continue
        order, descriptors = receive(control)
        if order is None:  # the worker is gone, however it went
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            sys.exit()
        pid = os.fork()
        if pid == 0:
            control.detach()
            return become(order, descriptors)
        *files, children[pid] = descriptors
        for each in files:
            os.close(each)
        os.write(children[pid], NUMBER.pack(pid))


def deaths() -> int:
    """A pipe that can be read when a child has died."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who sent it closes the socket
    signal.set_wakeup_fd(writing)
    return reading


def bury(children: dict[int, int]) -> None:
    """Tell the exit codes of those who have died."""
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        pipe = children.pop(pid)
        try:
            os.write(pipe, NUMBER.pack(os.waitstatus_to_exitcode(status)))
        except BrokenPipeError:
            pass  # nobody waits for it any more
        finally:
            os.close(pipe)


def receive(control: socket.socket) -> tuple[Json | None, list[int]]:
    """The next order, and the descriptors it came with; None when there will be no more."""
    came, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 4)
    while came and not came.endswith(b"\n"):
        came += control.recv(1 << 16)
    if not came:
        return None, []
    order: Json = json.loads(came)
    return order, descriptors


def become(order: Json, descriptors: list[int]) -> Json:
    """Make this process what was ordered."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, target)
    os.closerange(3, 256)  # among them where others tell their exit codes
    os.chdir(order["cwd"])
    give_up_powers()
    os.environ.clear()  # noqa: TID251
    os.environ.update(order["env"])  # noqa: TID251
    time.tzset()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=stream is sys.stderr or stream.isatty())  # type: ignore[union-attr]  # both are text files
    return order


def give_up_powers() -> None:
    """Let files be as closed to root as to everybody: without capabilities (capabilities(7)).

    A program that it starts has them again. Raises: OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux" and libc.capset(struct.pack("Ii", CAPABILITIES, 0), bytes(24)):
        raise OSError(ctypes.get_errno(), "root's powers cannot be given up")


def live(order: Json) -> NoReturn:
    """Do what was ordered, and end as an interpreter does, but for taking apart what it holds in
    common with its parent: that would last ten times as long as most commands.
    """
    sys.argv[1:] = order["words"]
    code: object = 0
    try:
        begin(order["trigger"], lifeline=order["lifeline"])
    except SystemExit as end:
        code = end.code or 0
    threading._shutdown()  # type: ignore[attr-defined]  # what sys.exit does: threads may end
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    warm_up()
    live(serve(socket.socket(fileno=int(sys.argv[1]))))
