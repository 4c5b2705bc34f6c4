"""Where models come from and how their weights are read; needs the `compile` extra."""
