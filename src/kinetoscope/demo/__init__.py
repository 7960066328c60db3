"""The whole loop on an example: profile, diagnose, change one thing, verify."""
