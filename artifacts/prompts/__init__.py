"""Prompt lists: calibration and benchmark."""
