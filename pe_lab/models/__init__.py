"""The models, one in a file: networks from tokens to logits that call the hooks of an encoding."""
