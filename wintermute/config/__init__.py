"""The person's own file: what may stand in it, how it is read, and the lock on its data folder."""
