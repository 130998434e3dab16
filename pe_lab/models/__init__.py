"""The models, one in a file: what reads a task's tokens and asks the encoding."""
