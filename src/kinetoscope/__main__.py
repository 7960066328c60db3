"""`python -m kinetoscope` is the `kinetoscope` command."""

from __future__ import annotations

from kinetoscope.cli import main

if __name__ == "__main__":
    main()
