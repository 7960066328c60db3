"""Rules about memory: allocation, growth, copies."""
