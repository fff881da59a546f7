"""A program that speaks as the embedder does, or not: a dozen ways to be of no use.

    python embedding_child.py WAY FOLDER IDLE_SECONDS PARENT

Its vectors have four numbers: how often a, e, i and o stand in the text. In FOLDER it writes a line
into `starts` for each start; `once` there lets it be of use from the second start on.
"""

import json
import math
import os
import struct
import sys
from pathlib import Path

DIMENSION = 4


def numbers(text: str) -> list[float]:
    """The vector of a text, not 1 long."""
    return [text.lower().count(sign) + 0.5 for sign in "aeio"]


def tell(body: bytes) -> None:
    """One frame."""
    sys.stdout.buffer.write(struct.pack("<I", len(body)) + body)
    sys.stdout.buffer.flush()


def answer(way: str, question: dict[str, object]) -> None:
    texts = question["texts"]
    assert isinstance(texts, list)
    if way == "dies" or (way == "dies over poison" and "poison" in str(texts)):
        sys.exit("first line\nValueError: a text it cannot bear")
    if way == "hangs":
        sys.stdin.buffer.read()  # until the end of the world, or of who asks
    rows = [numbers(text) for text in texts]
    if way == "nan":
        rows = [[math.nan] * DIMENSION for _ in rows]
    if way == "zero":
        rows = [[0.0] * DIMENSION for _ in rows]
    if way == "short":
        rows.append(rows[0])
    dimension = DIMENSION
    if way == "other dimension":
        dimension, rows = 2, [row[:2] for row in rows]
    number = 77 if way == "other question" else question["id"]
    flat = [number for row in rows for number in row]
    head = struct.pack("<III", number, len(rows), dimension)
    tell(b"V" + head + struct.pack(f"<{len(flat)}f", *flat))


def main(way: str, folder: Path) -> None:
    with (folder / "starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    (folder / "environment").write_text(json.dumps(dict(os.environ)))  # noqa: TID251  looked at
    if len((folder / "starts").read_text().splitlines()) > 1 and (folder / "once").exists():
        way = "well"
    if way == "slow":
        (folder / "gate").read_text()  # a pipe: until somebody writes into it
    if way == "never ready":
        sys.stdin.buffer.read()
    if way == "loud":
        sys.stderr.write("a warning of a library\n" * 100_000)
    if way == "garbage":
        sys.stdout.write("Hello! I am no embedder.\n" * 1000)
        sys.stdout.flush()
        sys.stdin.buffer.read()
    tell(b"R" + struct.pack("<I", DIMENSION))
    if way == "leaves":
        return
    while head := sys.stdin.buffer.read(4):
        answer(way, json.loads(sys.stdin.buffer.read(*struct.unpack("<I", head))))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
