// Pins the tools that the real-node tests build; never compiled itself.

//go:build tools

package tools

import _ "github.com/containerd/containerd/v2/cmd/containerd"
import _ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
import _ "github.com/containerd/containerd/v2/cmd/ctr"
