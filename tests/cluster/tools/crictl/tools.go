// Pins the tools that the real-node tests build; never compiled itself.

//go:build tools

package tools

import _ "sigs.k8s.io/cri-tools/cmd/crictl"
