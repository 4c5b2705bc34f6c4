"""`python -m yggrt`."""

from yggrt.cli import main

if __name__ == "__main__":
    main()
