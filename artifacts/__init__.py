"""Recipes and prompt lists that travel with the compiler. Never a built bundle."""
