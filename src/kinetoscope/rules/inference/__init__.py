"""Rules about inference and serving."""
