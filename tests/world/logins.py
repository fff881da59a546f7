"""The login that a daemon keeps, and a homeserver that no longer takes it."""

import json
from typing import Any

from tests.world.bot import Bot
from tests.world.homeserver import Homeserver, Login
from tests.world.proxy import Action, Answer, Proxy, Request, pass_before
from tests.world.user import CLIENT

Json = dict[str, Any]
FULL = 50
SOFT = Answer(401, {"errcode": "M_UNKNOWN_TOKEN", "error": "expired", "soft_logout": True})


def kept_login(daemon: Bot) -> Json:
    """The login that the daemon keeps."""
    kept: Json = json.loads((daemon.data / "matrix" / "session.json").read_text())
    return kept


def take_all(homeserver: Homeserver, thief: Login, user: str, device: str) -> Json:
    """Claim a device's keys until it has none left; the fallback key, or {} when there is none."""
    body = {"one_time_keys": {user: {device: "signed_curve25519"}}}
    for _ in range(2 * FULL):
        answer = homeserver.request("POST", f"{CLIENT}/keys/claim", body, thief.access_token)
        keys: Json = answer["one_time_keys"].get(user, {}).get(device, {})
        if not keys or next(iter(keys.values())).get("fallback"):
            return keys
    raise AssertionError("it has more keys than it should have")


def expire(proxy: Proxy, refusal: Answer = SOFT) -> None:
    """The login is good for nothing until there is a new one."""

    def refuse(request: Request) -> Action:
        return None if request.path.endswith("/login") else refusal

    def let_in(request: Request, status: int, _body: bytes) -> Action:
        if request.method == "POST" and request.path.endswith("/login") and status == 200:
            proxy.before = pass_before
        return None

    proxy.before, proxy.after = refuse, let_in


def with_token(daemon: Bot, token: str) -> None:
    """Configure a token in the place of the password."""
    settings = json.loads(daemon.config.read_text())
    settings["matrix"] |= {"access_token": {"file": "token"}, "password": None}
    (daemon.config.parent / "token").write_text(token)
    daemon.config.write_text(json.dumps(settings))
