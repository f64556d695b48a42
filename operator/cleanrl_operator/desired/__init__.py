"""Pure builders: a run and the installation's settings go in, the objects that should exist come out."""
