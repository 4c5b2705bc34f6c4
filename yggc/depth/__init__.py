"""`yggc train depth`: a bundle's depth predictor, from traces to swapped constants."""
