"""Tables of cases of which few are tried at every change, and all of them before a landing."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

T = TypeVar("T")


def tiered(cases: Mapping[str, T], quick: Iterable[str]) -> list[ParameterSet]:
    """A parameter for each case, with its name; those that are not `quick` are slow."""
    wanted = set(quick)
    assert wanted < set(cases), wanted - set(cases)
    return [
        pytest.param(case, id=name, marks=() if name in wanted else pytest.mark.slow)
        for name, case in cases.items()
    ]
