"""Flags and recipes become one checked configuration."""
