"""Other keys under a device's known id: a client that lost its store, or somebody in its place."""

from collections.abc import Mapping
from typing import Any

from nio import AsyncClient
from nio.crypto import OlmDevice

from wintermute.matrix.cross_signing import CrossSigning
from wintermute.matrix.people import Device, People, device_of
from wintermute.matrix.sessions import known
from wintermute.messages import Json


class ReplacedDevices:
    """Lets new keys in where their owner's identity signed them; remembers which were refused.

    What the old keys encrypted stays readable. Nothing is encrypted for them any more, taken or
    not: whoever is asked for a device's keys and gives others does not have the old ones.
    """

    def __init__(self, nio: AsyncClient, people: People, identity: CrossSigning) -> None:
        self._nio = nio
        self._people = people
        self._identity = identity
        self._refused: dict[tuple[str, str], Device] = {}
        self._news: list[Device] = []

    @property
    def trouble(self) -> str:
        """How many sessions of people that we answer are refused, for the status; "" for none."""
        count = sum(user in self._people.allowed for user, _ in self._refused)
        return f"sessions with other keys than before, refused: {count}" if count else ""

    @property
    def users(self) -> frozenset[str]:
        """Whose devices were refused."""
        return frozenset(user for user, _ in self._refused)

    def refused(self, user: str, device_id: str, curve25519: str) -> Device | None:
        """A device by the keys that were refused."""
        device = self._refused.get((user, device_id))
        return device if device and curve25519 in (device.curve25519, "") else None

    def take_news(self) -> list[Device]:
        """What was refused since the last call."""
        news, self._news = self._news, []
        return news

    def sift(
        self, answer: Json, found: Mapping[str, Mapping[str, Json]]
    ) -> dict[str, dict[str, Json]]:
        """The devices of an answer to /keys/query without those to refuse, ready for nio.

        nio never takes another key under a known id: to let it in, the old device is forgotten.
        """
        return {user: self._sift(answer, user, devices) for user, devices in found.items()}

    def _sift(self, answer: Json, user: str, devices: Mapping[str, Json]) -> dict[str, Json]:
        store: dict[str, OlmDevice] = self._nio.olm.device_store[user]
        before = {key: self._refused.pop(key) for key in list(self._refused) if key[0] == user}
        good: dict[str, Json] = {}
        for name, served in devices.items():
            device, old = device_of(user, name, served), store.get(name)
            if old is None or known(old) == device:
                good[name] = served
            elif self._is_vouched_for(answer, device):
                good[name] = served
                del store[name]
            else:
                self._refused[user, name] = device
                self._news += [device] if before.get((user, name)) != device else []
        return good

    def _is_vouched_for(self, answer: Json, device: Device) -> bool:
        if device.user_id == self._nio.user_id:
            return self._identity.vouches_for(device)
        served: Any = answer["device_keys"][device.user_id][device.device_id]
        return self._people.vouches(answer, device.user_id, served)
