"""Syntax trees of Python sources, for tests that look at code."""

from __future__ import annotations

import ast
import gc


def parsed(text: str) -> ast.Module:
    """Return the tree of a source.

    Collecting garbage may run code that parses too, as a traceback that is told does, and Python 3.11 then takes the
    tree it was at for damaged (SystemError: AST constructor recursion depth mismatch).
    """
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        gc.enable()
