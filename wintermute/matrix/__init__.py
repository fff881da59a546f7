"""The door to Matrix: incoming events are read here, outgoing messages rendered and sent."""
