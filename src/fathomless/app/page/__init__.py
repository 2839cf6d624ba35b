"""Page of a run."""
