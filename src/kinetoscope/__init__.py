"""Kinetoscope."""
