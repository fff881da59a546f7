"""The door to Matrix: what comes in is read here, what goes out is rendered and sent here."""
