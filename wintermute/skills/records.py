"""A skill as the prompt lists it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Skill:
    """`name` is the file's name without `.md`; `summary` its first line without `#` marks."""

    name: str
    summary: str
