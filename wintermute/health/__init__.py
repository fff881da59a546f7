"""The state of each part of the program, stored so that another process can read it."""
