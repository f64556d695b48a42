//go:build tools

// Package tools names the programs that devcluster builds, so that go.sum pins all they need.
package tools

import (
	_ "helm.sh/helm/v3/cmd/helm"
)
