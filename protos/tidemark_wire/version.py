"""Version: the one place that says which version this is; `pyproject.toml` reads it from here.

Stays out: versions of the wire and of stores, which move on their own.
"""

VERSION = "0.1.0"
