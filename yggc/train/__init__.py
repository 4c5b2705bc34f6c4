"""Training of drafters: text that the verifier writes, and heads that learn from it."""
