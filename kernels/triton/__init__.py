"""Operators of CUDA graphs, namespace `ygg_cuda`; each file registers its own. This is empty."""
