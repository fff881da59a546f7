"""The durable inbox and outbox: an event is stored once on arrival, and a message is sent once."""
