"""What many tests stand on: one homeserver for the whole run, one model server for each test."""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.world.homeserver import Homeserver
from tests.world.model import ModelServer
from tests.world.user import MatrixUser

# A busy machine is no bug, and a found example goes into the test, not into a folder beside it.
settings.register_profile("house", deadline=None, database=None)
settings.load_profile("house")


@pytest.fixture(scope="session")
def homeserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homeserver]:
    """One Synapse for all tests. A test that stops it, or wants limits, starts its own."""
    with Homeserver(tmp_path_factory.mktemp("synapse")) as server:
        yield server


@pytest.fixture(scope="session")
def fresh() -> Callable[[str], str]:
    """Gives a user name nobody in this run has: `ann-1`."""
    numbers = itertools.count(1)
    return lambda name: f"{name}-{next(numbers)}"


@pytest.fixture
def person(
    homeserver: Homeserver, fresh: Callable[[str], str], tmp_path: Path
) -> Callable[[str], MatrixUser]:
    """Makes a new user with a client; open it with `async with`."""

    def make(name: str) -> MatrixUser:
        login = homeserver.user(fresh(name))
        return MatrixUser(homeserver.url, login, tmp_path / login.device_id)

    return make


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    """A scripted model server of this test's own."""
    async with ModelServer() as server:
        yield server
