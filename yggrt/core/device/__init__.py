"""An iteration without the host: what the engine does in Python lists, as tensor programs.

For a captured iteration, in which the host cannot look at a value between drafting and commit. So
all of it has static shapes, no control flow that values decide, and nothing is read back; what
does not exist is a row with a score of ABSENT, or an index of -1. Numbers that the host compares
as Python floats are float64 here, and ties are broken as there, so trees and tokens are the host's
(docs/adr/0016-device-iteration.md).

Operators that a target has kernels for are arguments: `top_k` is `ygg_cuda::topk_logsumexp`,
`accept` is `ygg_cuda::accept` and `kv_commit` is `ygg_cuda::kv_commit`, or whatever has their
contract.
"""
