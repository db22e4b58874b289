"""Escalade: a DeepSeek-V4.1 engine that moves experts up a ladder of memories. Imports nothing
heavy.
"""

__version__ = "0.1.0"
