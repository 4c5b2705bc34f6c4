"""`python -m yggc`."""

from yggc.cli import main

main()
