//go:build !unix

package postgres

import "net"

// gone can't be told here: the first statement on the connection will tell.
func gone(net.Conn) bool { return false }
