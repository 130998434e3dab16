"""Tables of results: their words, and every format that they are printed in."""
