"""Runs that can be monitored, paused and resumed, in one process or several."""
