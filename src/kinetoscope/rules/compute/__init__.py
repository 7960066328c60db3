"""Rules about what the device computes."""
