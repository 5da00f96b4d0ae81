"""Studies: run a mechanism for plain parameters and return tidy tables beside the facts."""
