"""Embedding vectors of length 1, and the interface of embedders.

Pure: lists and bytes, no numpy.
"""

import math
import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Protocol

from wintermute.errors import EmbeddingsUnavailable
from wintermute.text import clean

MOST_DIMENSIONS = 16_384
"""More than any useful model has; a server that reports more is wrong."""
LEAST_LENGTH = 1e-9
EVEN = 1e-6
"""The largest difference to length 1 for a vector that is not rescaled."""
FIRST_WORDS = 100
SIGNS_PER_WORD = 2
"""Characters that count as one word, in scripts without blanks."""
LONGEST_WORD = 20
"""The most characters of one word: longer ones, such as addresses and keys, count as several."""
# A Chinese or Japanese character, or a run of others without blanks.
WORD = re.compile(
    "([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"
    "|[^\\s\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
)


@dataclass(frozen=True, slots=True)
class Vector:
    """A vector of length 1, as 32-bit floats, little-endian. Made by `vector`."""

    values: bytes

    @property
    def dimension(self) -> int:
        """The dimension."""
        return len(self.values) // 4

    @property
    def numbers(self) -> list[float]:
        """The numbers as floats."""
        return list(_floats(self.values))


class Embedder(Protocol):
    """Computes vectors: queries and documents may need different prefixes."""

    @property
    def name(self) -> str:
        """The name stored with vectors: those with different names are never compared."""
        ...

    async def warm(self, seconds: float = 0.0) -> None:
        """Begin to get ready, and wait up to `seconds` for that. Never fails, embeds nothing."""
        ...

    async def embed_query(self, texts: Sequence[str]) -> list[Vector | None]:
        """Embed search queries within seconds; None for a text without a word.

        Raises: EmbeddingsUnavailable; the search then uses words alone.
        """
        ...

    async def embed_document(self, texts: Sequence[str]) -> list[Vector | None]:
        """Embed the first 100 words of each text; None for a text without a word.

        Raises: EmbeddingsUnavailable; the texts are embedded later.
        """
        ...

    async def aclose(self) -> None:
        """Close processes and connections."""
        ...


def vector(values: bytes | Iterable[object], dimension: int | None = None) -> Vector:
    """Return a vector of these numbers, scaled to length 1; bytes are 32-bit floats, little-endian.

    Raises: EmbeddingsUnavailable for no numbers, NaN, infinity, a length of zero and for another
    dimension than the one given (M-021, M-071).
    """
    numbers = _floats(values) if isinstance(values, bytes) else _numbers(values)
    count = len(numbers)
    if not 0 < count <= MOST_DIMENSIONS or (dimension is not None and count != dimension):
        expected = f"{dimension}" if dimension else f"1 to {MOST_DIMENSIONS}"
        raise EmbeddingsUnavailable(f"a vector of {count} numbers where {expected} are needed")
    length = math.hypot(*numbers)
    if not math.isfinite(length) or length < LEAST_LENGTH:
        raise EmbeddingsUnavailable("a vector that is not finite, or zero")
    even = abs(length - 1) <= EVEN
    floats = array("f", numbers if even else (number / length for number in numbers))
    if sys.byteorder == "big":
        floats.byteswap()
    return Vector(floats.tobytes())


def cosine_similarity(one: Vector, other: Vector) -> float:
    """Return the cosine: 1 for the same direction, 0 for nothing in common.

    Raises: EmbeddingsUnavailable for vectors of two dimensions.
    """
    if one.dimension != other.dimension:
        raise EmbeddingsUnavailable(
            f"vectors of {one.dimension} and {other.dimension} numbers cannot be compared"
        )
    cosine: float = sum(map(mul, _floats(one.values), _floats(other.values)))
    return cosine


def embeddable(text: str) -> str | None:
    """Return a text's first 100 words in one line; None if it has no word.

    Models embed emoji and empty texts as well, and their vectors would be similar to others.
    """
    text = clean(text)
    if not any(map(str.isalnum, text)):
        return None
    return " ".join(text[: _end(text)].split())


def _end(text: str) -> int:
    """Return the place where the first 100 words end."""
    room = float(FIRST_WORDS)
    for match in WORD.finditer(text):
        long = math.ceil((match.end() - match.start()) / LONGEST_WORD)
        cost = 1 / SIGNS_PER_WORD if match[1] else long
        if cost > room:
            return match.start() + int(room) * LONGEST_WORD if long > 1 else match.start()
        room -= cost
    return len(text)


def _floats(values: bytes) -> "array[float]":
    if len(values) % 4:
        raise EmbeddingsUnavailable("a vector that ends in the middle of a number")
    floats = array("f", values)
    if sys.byteorder == "big":
        floats.byteswap()
    return floats


def _numbers(values: Iterable[object]) -> list[float]:
    return list(_checked(values))


def _checked(values: Iterable[object]) -> Iterator[float]:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise EmbeddingsUnavailable("a vector with something in it that is no number")
        try:
            yield float(value)
        except OverflowError:
            raise EmbeddingsUnavailable("a vector that is not finite, or zero") from None
