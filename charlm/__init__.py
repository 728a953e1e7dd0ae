"""charlm: a command-line trainer of character-level language models."""

__version__ = "0.1.0"
