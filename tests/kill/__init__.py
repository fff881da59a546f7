"""The program is killed at each step of what it does, and everything is still done once."""
