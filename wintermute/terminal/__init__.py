"""The door in a terminal: `wintermute chat`."""
