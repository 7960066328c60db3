"""Rules about the host: launches, synchronisation, Python, compilation."""
