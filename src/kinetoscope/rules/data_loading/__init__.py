"""Rules about input: loading, preparing and copying batches."""
