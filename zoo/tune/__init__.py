"""Programs for `kinetoscope tune`, with the same change made by hand as truth."""
