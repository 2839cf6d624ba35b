"""Runs that can be watched, paused and resumed, in one process or several."""
