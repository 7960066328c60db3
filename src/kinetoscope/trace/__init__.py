"""Files in, columns out: readers, the event table, and what is derived from it once."""
