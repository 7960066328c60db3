"""Planted bottlenecks with known truth: programs, recorder and score."""
