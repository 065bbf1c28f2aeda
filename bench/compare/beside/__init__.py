"""What the comparison scripts share: the sample file, cache states, workers, and tables."""
