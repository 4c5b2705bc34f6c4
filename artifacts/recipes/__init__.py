"""Recipes, one per model and target."""
