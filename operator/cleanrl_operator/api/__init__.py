"""The `CleanRLRun` resource: typed spec and status, the rules that guard them, and the CRD generated from both."""

GROUP = "mosaic.dev"
VERSION = "v1alpha1"
KIND = "CleanRLRun"
PLURAL = "cleanrlruns"
