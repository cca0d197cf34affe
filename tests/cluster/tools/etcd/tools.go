// Pins the tools that the real-node tests build; never compiled itself.

//go:build tools

package tools

import _ "go.etcd.io/etcd/server/v3"
