"""What a run can be besides training: evaluation of a policy, playing it by hand, a script of several phases.

Each mode is a module with a `main` that the launcher starts like an algorithm, and that speaks to its supervisor like one.
`commands` writes their command lines. (Curriculum and resume are training, and happen in the algorithm's own process.)
"""
