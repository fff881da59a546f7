"""`python -m wintermute`."""

from wintermute.cli.main import main

if __name__ == "__main__":
    main()
