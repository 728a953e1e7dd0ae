"""The version of charlm: nothing else says it."""

__version__ = "0.2.0"
