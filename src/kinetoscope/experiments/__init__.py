"""Measures changes on the user's own program, without editing it: `verify` and `tune`.

A remedy is one file in `remedies/`. Every measurement is a fresh process (`_child`) that installs
the remedies, runs the script, finds its steps and times them without the profiler.
"""
