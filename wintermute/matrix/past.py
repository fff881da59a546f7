"""What was said in a room before, as the homeserver has it: people reply to it (F-026)."""

import asyncio
import logging

from wintermute import text
from wintermute.clock import Clock
from wintermute.commands.stores import Stores
from wintermute.config.schema import Matrix
from wintermute.errors import HomeserverUnavailable, LoginRefused, SendRefused
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.inbox import mapping, moment, readable, string
from wintermute.matrix.people import NOT_THEIRS
from wintermute.matrix.sieve import well_formed
from wintermute.matrix.trust import worth
from wintermute.messages import Json, Quote

log = logging.getLogger(__name__)

SECONDS = 5.0
"""How long an answer may wait for what its question replies to."""


class Past:
    """Asks for single messages, and believes as much of them as if they had just come."""

    def __init__(
        self, client: MatrixClient, stores: Stores, settings: Matrix, clock: Clock
    ) -> None:
        self._client = client
        self._database = stores.database
        self._known = stores.known
        self._clock = clock
        self._accepts = settings.unsigned_devices == "accept"

    async def quote(self, room_id: str, event_id: str) -> Quote | None:
        """An earlier message of a room; None when it cannot be had, read or believed."""
        try:
            async with asyncio.timeout(SECONDS):
                raw = await self._client.event(room_id, event_id)
        except (HomeserverUnavailable, SendRefused, LoginRefused, TimeoutError) as error:
            log.info("quote not found room=%s event=%s reason=%s", room_id, event_id, error)
            return None
        events, _ = well_formed([raw])
        if not events or (raw["event_id"], raw.get("room_id", room_id)) != (event_id, room_id):
            return None
        event = await self._believed(room_id, raw)
        return self._quote(room_id, event) if event else None

    async def _believed(self, room_id: str, raw: Json) -> Json | None:
        """An event in clear, if it may be its sender's word; in clear it may be anybody's there."""
        if not raw["content"]:  # taken back
            return raw
        async with self._database.transaction() as tx:
            if raw["type"] != "m.room.encrypted":
                encrypted = await self._known.is_encrypted(tx, room_id)
                return None if encrypted or self._client.room(room_id).encrypted else raw
            opened, verdict = await self._client.judged(tx, room_id, raw)
        held = worth(verdict, encrypted=True, accept=self._accepts) == "held"
        return None if opened is None or verdict in NOT_THEIRS or held else opened.event

    def _quote(self, room_id: str, event: Json) -> Quote | None:
        sender = string(event, "sender")
        members = self._client.room(room_id).members
        name = text.display_name(members.get(sender, "")) or text.display_name(sender)
        content = mapping(event.get("content"))
        if string(content, "msgtype") == "m.notice":  # what a bot says may be asked about
            content = {**content, "msgtype": "m.text"}
        body = readable(content, name) if event["type"] == "m.room.message" else ""
        if content and not body:
            return None
        if sender == self._client.account.user_id:
            sender = name = ""
        sent_at = moment(event["origin_server_ts"], self._clock.now())
        return Quote(sender, name, body, self._client.by_our_clock(sent_at))
