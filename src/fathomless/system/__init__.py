"""Foundations of all folders: errors, random numbers, progress, memory, files, citations. Imports no other folder."""
