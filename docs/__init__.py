"""The pages about the encodings, and what writes them: ``python -m docs.generate``."""
