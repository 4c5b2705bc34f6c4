"""Exact sampling: what a request may ask for, the verifier's processed distribution, and the token
that keyed noise picks from it (docs/sampling.md).

`params` imports no torch; every other module does.
"""
