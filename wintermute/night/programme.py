"""What a night does, put together: each phase by its name, and what its items do."""

from wintermute.night.deeds import Deeds
from wintermute.night.learning import Background
from wintermute.night.nights import Nights
from wintermute.night.tidying import Programme, Tidying


def tidying(own: Background) -> Tidying:
    """The night of a configuration, built on what is open."""
    stores = own.stores
    nights = Nights(stores.database, own.clock)
    deeds = Deeds(stores, nights, {}, {}, stores.undo.files)
    budget = own.config.dreaming.budget_tokens
    return Tidying(stores, nights, Programme(), deeds, own.models, budget)
