"""Goals and promises: what must happen, as rows of the database."""
