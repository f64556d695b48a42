"""What the algorithms share, once: environments, checkpoints, replay, normalisers, writer, and the run itself.

An algorithm's file holds the algorithm. It is handed a `run.Run` and talks to the outside only through it. Nothing in this
package imports torch at module level, except the helpers that are about torch.
"""
