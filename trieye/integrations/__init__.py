"""Programs that were written for something else, with one line changed: their numbers become a run."""
