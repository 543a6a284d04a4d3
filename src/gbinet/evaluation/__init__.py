"""Measures of depth maps and clouds against the truth."""
