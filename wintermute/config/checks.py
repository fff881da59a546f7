"""Rules that concern several keys at once; they see what could be read, beside other problems."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from wintermute.config.document import TOP, Place, Problem
from wintermute.config.scalars import nearest
from wintermute.config.schema import Backend

BACKENDS = "llm.backends"
BASE = "llm.roles.base"
MEMORY = "memory.backend"
SECRET = "{env: NAME} or {file: PATH}"


@dataclass(frozen=True, slots=True)
class Found:
    """What stands in the file under a key; an empty optional key does not count as there."""

    place: Place
    value: object
    """None when it is wrong, which is reported already."""
    names_backend: bool


def check_all(found: Mapping[str, Found], reported: set[str]) -> list[Problem]:
    """What does not fit together, except below the keys that were reported before."""
    problems = [*_login(found), *_owner(found), *_backends(found), *_references(found)]
    problems += _memory(found)
    return [problem for problem in problems if not reported & set(_upwards(problem.key))]


def _upwards(key: str) -> list[str]:
    """The key and the sections it stands in, from the inside out."""
    parts = key.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def _problem(found: Mapping[str, Found], key: str, text: str) -> Problem:
    place = next((found[part].place for part in _upwards(key) if part in found), TOP)
    return Problem(place, key, text)


def _value(found: Mapping[str, Found], key: str) -> object:
    return found[key].value if key in found else None


def _login(found: Mapping[str, Found]) -> Iterator[Problem]:
    given = [key for key in ("matrix.password", "matrix.access_token") if key in found]
    if not given:
        text = f"is missing: write {SECRET}, or give an access_token in the same way"
        yield _problem(found, "matrix.password", text)
    elif len(given) == 2:
        yield _problem(found, "matrix.access_token", "stands beside a password: remove one of them")


def _owner(found: Mapping[str, Found]) -> Iterator[Problem]:
    owner = _value(found, "matrix.owner")
    if owner is not None and owner == _value(found, "matrix.user_id"):
        text = "is the bot's own account (user_id): write the id of the person it belongs to"
        yield _problem(found, "matrix.owner", text)


def _backends(found: Mapping[str, Found]) -> Iterator[Problem]:
    backends = _value(found, BACKENDS)
    if not isinstance(backends, Mapping):
        return
    if not backends:
        yield _problem(found, BACKENDS, "names no backend: describe at least one")
    if len(backends) > 1 and not _value(found, BASE):
        names = ", ".join(backends)
        yield _problem(found, BASE, f"is missing: several backends, so write which to use: {names}")
    for name, backend in backends.items():
        if isinstance(backend, Backend) and _crowded(backend):
            key = f"{BACKENDS}.{name}.max_output_tokens"
            text = f"leaves no room for the question: must be below {backend.context_tokens}"
            yield _problem(found, key, f"{text} (context_tokens)")


def _crowded(backend: Backend) -> bool:
    sizes: tuple[int | None, int | None] = backend.max_output_tokens, backend.context_tokens
    longest, window = sizes  # None while a value is wrong
    return longest is not None and window is not None and longest >= window


def _memory(found: Mapping[str, Found]) -> Iterator[Problem]:
    """Better no start than another backend than the one that was asked for (M-021)."""
    backend = _value(found, MEMORY)
    if backend is not None and backend != "flat_file":
        yield _problem(found, MEMORY, f"{backend} is not built yet: write flat_file")


def _references(found: Mapping[str, Found]) -> Iterator[Problem]:
    backends = _value(found, BACKENDS)
    if not isinstance(backends, Mapping) or not backends:
        return
    for key, place in found.items():
        if place.names_backend and isinstance(place.value, str) and place.value not in backends:
            guess = nearest(place.value, backends)
            text = f"no backend is called {place.value[:60]!r}; the nearest known one is {guess}"
            yield _problem(found, key, text)
