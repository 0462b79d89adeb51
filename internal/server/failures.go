package server

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/labstack/echo/v4"
	"golang.org/x/time/rate"
)

const (
	// failuresAtOnce is how often authentication may fail for a client address
	// without a pause, and failuresEvery how often after that.
	failuresAtOnce = 20
	failuresEvery  = time.Second
	// failurePause is how long a request waits before it is refused. Refused at
	// once, clients that come right back would take the time of the others.
	failurePause = 500 * time.Millisecond
	// limitedClients bounds how many addresses are kept in mind.
	limitedClients = 8192
)

// failures limits how often authentication may fail for each client address.
type failures struct {
	limiters *lru.Cache[netip.Prefix, *rate.Limiter]
}

func newFailures() *failures {
	limiters, err := lru.New[netip.Prefix, *rate.Limiter](limitedClients)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return &failures{limiters}
}

// note counts a failure.
func (f *failures) note(address string) {
	client := clientOf(address)
	limiter, ok := f.limiters.Get(client)
	if !ok {
		limiter = rate.NewLimiter(rate.Every(failuresEvery), failuresAtOnce)
		if other, ok, _ := f.limiters.PeekOrAdd(client, limiter); ok {
			limiter = other
		}
	}
	limiter.Allow()
}

// pause returns how long it takes until authentication may fail again for a client.
func (f *failures) pause(address string) time.Duration {
	if f.limiters.Len() == 0 {
		return 0
	}
	limiter, ok := f.limiters.Get(clientOf(address))
	if !ok {
		return 0
	}
	missing := 1 - limiter.Tokens()
	return time.Duration(missing * float64(failuresEvery))
}

// admit lets a token pass that may be a bad one. Those that wait for the same
// client's next failure pass together. The others are refused.
func (f *failures) admit(ctx context.Context, address string) error {
	pause := f.pause(address)
	if pause <= 0 {
		return nil
	}
	select {
	case <-ctx.Done():
	case <-time.After(min(pause, failurePause)):
	}
	if pause > failurePause {
		return errTooManyFailures
	}
	return nil
}

// clientOf is the network that an address stands for: whoever has one address of
// IPv6 has 2^64. What is no address is one client, too.
func clientOf(address string) netip.Prefix {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return netip.Prefix{}
	}
	a = a.Unmap().WithZone("")
	network, _ := a.Prefix(min(a.BitLen(), 64)) // a number of bits that it has
	return network
}

// addressOf returns what tells a client's address: that of the connection or, where
// a trusted proxy says so in X-Forwarded-For, that of the proxy's client.
func addressOf(proxies []netip.Prefix) echo.IPExtractor {
	if len(proxies) == 0 {
		return echo.ExtractIPDirect()
	}
	trusted := []echo.TrustOption{echo.TrustLoopback(false), echo.TrustLinkLocal(false), echo.TrustPrivateNet(false)}
	for _, p := range proxies {
		trusted = append(trusted, echo.TrustIPRange(&net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}))
	}
	extract := echo.ExtractIPFromXFFHeader(trusted...)
	return func(r *http.Request) string {
		return extract(&http.Request{RemoteAddr: r.RemoteAddr, Header: http.Header{
			echo.HeaderXForwardedFor: withoutPorts(r.Header[echo.HeaderXForwardedFor])}})
	}
}

// withoutPorts returns the entries of X-Forwarded-For as plain addresses. Some proxies
// write the client's port, too, as in 192.0.2.1:4711 and [2001:db8::1]:4711.
func withoutPorts(lines []string) (entries []string) {
	for _, line := range lines {
		for entry := range strings.SplitSeq(line, ",") {
			entry = strings.TrimSpace(entry)
			if a, err := netip.ParseAddrPort(entry); err == nil {
				entry = a.Addr().String()
			}
			entries = append(entries, entry)
		}
	}
	return entries
}
