"""`python -m charlm` is `charlm`."""

from charlm.cli import main

main()
