package programs

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// FreeAddress finds a port of 127.0.0.1 that nobody listens on. It is below the
// ports that systems give to outgoing connections: none of these may take it
// before a program listens there, nor while that program is down.
func FreeAddress() (string, error) {
	var err error
	for range 100 {
		at := fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000))
		var l net.Listener
		if l, err = net.Listen("tcp", at); err == nil {
			return at, l.Close()
		}
	}
	return "", fmt.Errorf("no free port: %w", err)
}
