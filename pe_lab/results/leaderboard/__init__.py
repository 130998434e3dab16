"""The runs of a suite: read from run folders, shipped in one file, and summed up in tables."""
