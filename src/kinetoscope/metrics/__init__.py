"""Pure functions from a trace to frozen numbers. Nothing here knows a rule or an output."""
