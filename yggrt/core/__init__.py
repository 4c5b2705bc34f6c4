"""The pure core: values in, values out.

Modules here import the standard library, msgspec and torch, and nothing else of this project: no
device, file, clock or global random state.
"""
