"""The operator: it turns a `CleanRLRun` into a Pod, and what happens to that Pod into the run's status."""
