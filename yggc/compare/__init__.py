"""`yggc compare`: bundles beside other runtimes on the same model, prompts, tokens and threads."""
