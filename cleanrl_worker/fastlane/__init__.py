"""FastLane: live frames and metrics of a run, through shared memory, without slowing it down.

`publisher` is what a training loop calls, `wrapper` what foreign scripts get through `gym.make`. Both write two shared
memory segments: the frame ring (`ring`, a public format that existing viewers attach to) and the metrics (`metrics`,
our own). `exporter` reads both in the supervisor and serves them over HTTP. `segment` owns the files behind them:
names, locks, clean-up.

Nothing is imported here, so that a process pays only for the part it uses.
"""
