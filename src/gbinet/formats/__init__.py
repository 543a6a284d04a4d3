"""Bytes <-> nouns: one module per file format. No policy here, and nothing is parsed anywhere else."""
