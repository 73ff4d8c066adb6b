"""Entry of `python -m tidemark_operator`."""

from .main import main

main()
