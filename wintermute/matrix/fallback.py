"""Our fallback key: what begins a session with us when our one-time keys are used up (MSC2732).

It may be used many times, so the homeserver is given another one as soon as it says that the last
was used. vodozemac keeps the private part of the one before: its first messages may be on the way.
"""

import logging

from nio import AsyncClient

from wintermute.clock import Clock
from wintermute.errors import HomeserverUnavailable, SendRefused
from wintermute.matrix.http import call, path
from wintermute.matrix.key_store import KeyStore
from wintermute.messages import Json

log = logging.getLogger(__name__)

REFUSED_SECONDS = 3600.0
UNAVAILABLE_SECONDS = 60.0


class FallbackKey:
    """Gives the homeserver a fallback key whenever it says that it has no unused one."""

    def __init__(self, nio: AsyncClient, store: KeyStore, clock: Clock) -> None:
        self._nio = nio
        self._store = store
        self._clock = clock
        self._lacks: bool | None = None
        self._signed: Json = {}
        self._again = 0.0
        self.trouble = ""
        """Why the homeserver has none of ours; empty when it has one, or wants none."""

    def note(self, *, lacks: bool | None) -> None:
        """Take in what a sync says; None: this homeserver knows no fallback keys."""
        self._lacks = lacks

    def outdate(self) -> None:
        """The one that is there is not known here: another is wanted, where they are known at all."""
        if self._lacks is not None:
            self._lacks = True

    async def offer(self) -> None:
        """Upload one if it is wanted. Trouble is kept to be told, and stops nothing else."""
        account = self._nio.olm.account
        if self._lacks is None or not account.shared:
            return
        if not self._lacks:
            if account._account.fallback_key or self._signed:  # it got there, its answer did not
                self._published()
            self.trouble = ""
            return
        if self._clock.monotonic() < self._again:
            return
        try:
            await call(self._nio, "POST", path("keys", "upload"), {"fallback_keys": self._key()})
        except (SendRefused, HomeserverUnavailable) as error:
            refused = isinstance(error, SendRefused)
            pause = REFUSED_SECONDS if refused else UNAVAILABLE_SECONDS
            self._again = self._clock.monotonic() + pause
            self.trouble = f"fallback key: {error}"
            log.warning("fallback key not uploaded reason=%s", error)
        else:
            self._published()
            self.trouble = ""

    def _key(self) -> Json:
        """The key to upload, kept before anybody else can have it; the same until it is there.

        Each new one makes vodozemac forget the last but one, which may still be in use.
        """
        olm = self._nio.olm
        account = olm.account._account  # nio has no name for it
        if not self._signed:
            if not account.fallback_key:
                with self._store.writing():
                    account = olm.account._account
                    account.generate_fallback_key()
                    olm.save_account()
            [(name, key)] = account.fallback_key.items()
            content: Json = {"key": key.to_base64(), "fallback": True}
            signature = {f"ed25519:{olm.device_id}": olm.sign_json(content)}
            content["signatures"] = {olm.user_id: signature}
            self._signed = {f"signed_curve25519:{name}": content}
        return self._signed

    def _published(self) -> None:
        with self._store.writing():
            self._nio.olm.mark_keys_as_published()
            self._nio.olm.save_account()
        self._signed, self._lacks = {}, False
