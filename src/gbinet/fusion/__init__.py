"""Depth maps of many views in, one cloud out; memory does not grow with the number of views."""
