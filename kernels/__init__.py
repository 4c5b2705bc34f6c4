"""Operators of the compiled graphs, in `.build`, `.ops` and `.reference`; this file is empty."""
