"""The durable inbox and outbox: what came in once, and what must go out once."""
