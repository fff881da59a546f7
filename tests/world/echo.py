"""An echo bot as people write them on nio: what the daemon's speed is compared with.

    python -m tests.world.echo HOMESERVER USER_ID DEVICE TOKEN STORE [MODEL_URL]

With a model URL it shows a receipt and typing and asks the model; without one it only echoes.
"""

import asyncio
import sys

from nio import AsyncClient, AsyncClientConfig, InviteMemberEvent, MatrixRoom, RoomMessageText
from openai import AsyncOpenAI


class Echo:
    """Joins what it is invited to and answers every text."""

    def __init__(self, client: AsyncClient, model: AsyncOpenAI | None) -> None:
        self._client = client
        self._model = model

    async def invited(self, room: MatrixRoom, _event: InviteMemberEvent) -> None:
        """Go in."""
        await self._client.join(room.room_id)

    async def message(self, room: MatrixRoom, event: RoomMessageText) -> None:
        """Answer one message."""
        if event.sender == self._client.user_id:
            return
        text = event.body
        if self._model is not None:
            await self._client.update_receipt_marker(room.room_id, event.event_id)
            await self._client.room_typing(room.room_id, typing_state=True)
            text = await self._ask(self._model, text)
        else:
            text = f"echo: {text}"
        await self._client.room_send(
            room.room_id,
            "m.room.message",
            {"msgtype": "m.text", "body": text},
            ignore_unverified_devices=True,
        )
        if self._model is not None:
            await self._client.room_typing(room.room_id, typing_state=False)

    async def _ask(self, model: AsyncOpenAI, text: str) -> str:
        answer = await model.chat.completions.create(
            model="scripted",
            messages=[{"role": "system", "content": "Echo."}, {"role": "user", "content": text}],
        )
        return answer.choices[0].message.content or ""


async def run(homeserver: str, user: str, device: str, token: str, store: str, url: str) -> None:
    """Echo until killed."""
    config = AsyncClientConfig(pickle_key="bench", store_sync_tokens=False)
    client = AsyncClient(homeserver, user, device, store, config)
    client.restore_login(user, device, token)
    model = AsyncOpenAI(base_url=url, api_key="none") if url else None
    echo = Echo(client, model)
    await client.sync(full_state=True)
    client.add_event_callback(echo.message, RoomMessageText)
    client.add_event_callback(echo.invited, InviteMemberEvent)
    print("ready", flush=True)  # noqa: T201
    # Without a limit of its own the homeserver leaves most of a burst out, and nobody asks for it.
    await client.sync_forever(timeout=30_000, sync_filter={"room": {"timeline": {"limit": 100}}})


if __name__ == "__main__":
    server, user_id, device_id, token, store, *model_url = sys.argv[1:]
    asyncio.run(run(server, user_id, device_id, token, store, "".join(model_url)))
