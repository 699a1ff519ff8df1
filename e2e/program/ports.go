package program

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// Ports for servers lie below those that systems use for outgoing connections. A
// port from there could be some client's by the time that a server restarts.
const (
	firstPort = 20_000
	lastPort  = 32_000
)

// freeAddress returns an address on the loopback interface that nobody listens on.
func freeAddress(tb testing.TB) string {
	tb.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", firstPort+rand.N(lastPort-firstPort))
		l, err := net.Listen("tcp", address)
		if err == nil {
			l.Close()
			return address
		}
	}
	tb.Fatal("no free port")
	return ""
}
