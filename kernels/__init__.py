"""Operators of the compiled graphs. Import `ygg_kernels.build`, `.ops` or `.reference`; this file stays empty."""
