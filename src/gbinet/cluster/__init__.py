"""Depth and fusion on Ray: many workers, the bytes of one process."""
