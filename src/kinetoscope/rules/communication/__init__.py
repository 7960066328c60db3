"""Rules about collectives between ranks."""
