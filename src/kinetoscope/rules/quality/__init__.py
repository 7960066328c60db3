"""Rules about the recording itself; they gate the others and never name a bottleneck."""
