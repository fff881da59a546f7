"""What a sub-session may use: never more than its parent. Pure."""

from collections.abc import Collection
from dataclasses import dataclass

from wintermute.config.schema import SubSessions as Limits
from wintermute.conversation.toolbox import DONE, Place
from wintermute.conversation.wards import Wards
from wintermute.delegation.records import Means, Order
from wintermute.errors import ToolFailed
from wintermute.prompt.modes import tools_for

ROLE = "sub_sessions"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the configuration allows. `own_models`: sub-sessions have models of their own."""

    limits: Limits
    max_tokens: int
    models: Collection[str]
    own_models: bool

    def means(self, order: Order, place: Place, *, blocking: bool) -> Means:
        """What an order from this place leads to.

        Raises: ToolFailed for an unknown tool or model, and where the parent has nothing left.
        """
        self._check(order, place)
        if blocking and (used_up := place.left.breached(0, 0, 0)):
            raise ToolFailed(f"nothing was started: {used_up} leaves nothing for a sub-session")
        depth = self._depth(order, place)
        tools = tools_for(order.mode, depth, order.tools, place.toolbox.names)
        wards = Wards(
            self.limits.max_turns,
            min(self.limits.timeout_s, order.timeout_s or self.limits.timeout_s),
            self.max_tokens,
            require_done=True,
        )
        inherits = order.model is None and not self.own_models
        return Means(
            tools=tuple(sorted({*tools, DONE})),
            role=ROLE if self.own_models else place.role,
            backend=place.backend if inherits else order.model,
            depth=depth,
            wards=wards.within(place.left if blocking else place.wards),
        )

    def _depth(self, order: Order, place: Place) -> int:
        """Levels that may be below it (L-060)."""
        most = min(place.depth, self.limits.max_depth)
        return (most if order.max_depth is None else min(most, order.max_depth)) - 1

    def _check(self, order: Order, place: Place) -> None:
        available = place.toolbox.names
        unknown = [name for name in order.tools or () if name not in available]
        if unknown:
            raise ToolFailed(
                f"unknown tool: {', '.join(unknown)}; nothing was started."
                f" A sub-session may have: {', '.join(available)}"
            )
        if order.model is not None and order.model not in self.models:
            raise ToolFailed(
                f"unknown model: {order.model}; nothing was started."
                f" Known are: {', '.join(self.models)}"
            )
        if not order.objective.strip():
            raise ToolFailed("the objective is empty; nothing was started")
