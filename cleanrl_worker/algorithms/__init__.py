"""One file per algorithm. Each reads from top to bottom as the algorithm; what is not the algorithm is in `training/`."""
