"""The door in a browser: what it shows and takes."""
