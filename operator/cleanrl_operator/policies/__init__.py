"""One small policy per file: each answers one question about a run from its spec, status and facts."""
