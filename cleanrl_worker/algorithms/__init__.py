"""One file per algorithm, each readable from top to bottom and runnable on its own: `python -m cleanrl_worker.algorithms.ppo`.

The small dense networks are multiplied by NumPy's BLAS, which starts a thread for every core it sees and lets them spin: on
matrices this small that costs several times the CPU and gains nothing. So one thread is the default; it has to be said before
NumPy is imported, and whoever sets the variable decides.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
