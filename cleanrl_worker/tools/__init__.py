"""Commands around runs: install requirement sets, archive and delete run folders, generate reference files."""
