"""Budgets of tokens, characters, words and lines: who passes one is told what to do, and before that.

budget("lines of modules", {"wintermute/daemon.py": 480}, 700, "Split it by nouns.")
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pytest

NEARLY = 0.9
"""The share of a budget from which on the run says at its end that it is nearly spent."""
PROPERTY = "budget"


@dataclass(frozen=True, slots=True)
class Budgeted:
    """Checks what things use against the most that each may use."""

    note: Callable[[str, object], None]

    def __call__(
        self, what: str, used: Mapping[str, int], most: int | Mapping[str, int], to_do: str
    ) -> None:
        """Fail with `to_do` where something uses more, and note what comes near it."""
        limits = dict.fromkeys(used, most) if isinstance(most, int) else most
        shares = {name: count / limits[name] for name, count in used.items()}
        near = sorted((n for n in shares if shares[n] >= NEARLY), key=lambda n: -shares[n])
        lines = [f"{name}: {used[name]:,} of {limits[name]:,}" for name in near]
        if passed := sum(share > 1 for share in shares.values()):
            pytest.fail("\n  ".join([f"{what}. {to_do}", *lines[:passed]]), pytrace=False)
        if near:
            self.note(PROPERTY, f"budget nearly spent: {what}: {lines[0]}; {len(near)} in all")


def nearly_spent(reports: Iterable[pytest.TestReport]) -> list[str]:
    """The lines of a run for the budgets of which little is left."""
    found = [each.user_properties for each in reports if each.when == "call"]
    return [str(line) for each in found for name, line in each if name == PROPERTY]
