"""The page that `yggc report` writes: why a bundle is as fast as it is.

A module per family of figures. What a figure shows is made by pure functions from the manifest and
from the JSON of `yggrt bench` and `yggc compare`; only `svg` knows how it is drawn.
"""
