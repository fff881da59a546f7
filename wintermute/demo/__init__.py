"""A try-out that needs nothing: no account, no key, no network."""
