"""`python -m tidemark_node`."""

import sys

from .main import main

sys.exit(main())
