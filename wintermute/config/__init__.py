"""The configuration: its keys, how they are read, and the lock on the data folder."""
