"""One file, one remedy; no list names them. See `docs/tune.md`."""
