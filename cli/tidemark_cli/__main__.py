"""`python -m tidemark_cli` is `tidemark`."""

from .main import main

main()
