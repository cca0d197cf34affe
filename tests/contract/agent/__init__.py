"""The whole agent over real sockets and HTTP: what happens on a node, without one."""
