"""``python -m mlfabric``: the same as the ``mlfabric`` command."""

from mlfabric.cli import main

if __name__ == "__main__":
    main()
