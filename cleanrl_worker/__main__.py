"""`python -m cleanrl_worker` is `cleanrl-worker`."""

from __future__ import annotations

import sys

from cleanrl_worker.cli import main

sys.exit(main())
