package server

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/labstack/echo/v4"
	"golang.org/x/time/rate"
)

// Rate allows Count requests in the time In, and Burst of them at once. Each process counts
// for itself.
type Rate struct {
	Count int
	In    time.Duration
	Burst int
}

// failureRate limits failed authentications for each client address.
var failureRate = Rate{Count: 1, In: time.Second, Burst: 20}

// maxLimiters limits how many clients are remembered.
const maxLimiters = 8192

// limiters limits the rate of each client by its key.
type limiters[K comparable] struct {
	limit  Rate
	recent *lru.Cache[K, *rate.Limiter]
}

func newLimiters[K comparable](r Rate) *limiters[K] {
	recent, _ := lru.New[K, *rate.Limiter](maxLimiters) // fails only for a size that is not positive
	return &limiters[K]{r, recent}
}

// take counts a request, or returns how long it is until one may come.
func (l *limiters[K]) take(key K) time.Duration {
	limiter, ok := l.recent.Get(key)
	if !ok {
		limiter = rate.NewLimiter(rate.Limit(float64(l.limit.Count)/l.limit.In.Seconds()), l.limit.Burst)
		if other, ok, _ := l.recent.PeekOrAdd(key, limiter); ok {
			limiter = other
		}
	}
	if limiter.Allow() {
		return 0
	}
	// Reserve and Cancel are no alternative: of several reservations, Cancel returns only the last.
	return max(1, time.Duration((1-limiter.Tokens())/float64(limiter.Limit())*float64(time.Second)))
}

// A rateError is returned for too many requests. wait is how long it is until one may come.
type rateError struct {
	error
	wait time.Duration
}

func (e *rateError) Unwrap() error             { return e.error }
func (e *rateError) RetryAfter() time.Duration { return e.wait }

// networkOf returns the network that counts as one client: an IPv6 client has 2^64 addresses.
// All texts that are no address count as one client.
func networkOf(address string) netip.Prefix {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return netip.Prefix{}
	}
	a = a.Unmap().WithZone("")
	network, _ := a.Prefix(min(a.BitLen(), 64)) // a number of bits that it has
	return network
}

// clientAddress returns the address of the connection. If that is a trusted proxy, it returns
// the last address in X-Forwarded-For that is none.
func clientAddress(r *http.Request, proxies []netip.Prefix) string {
	address, _, _ := net.SplitHostPort(r.RemoteAddr)
	if len(proxies) == 0 {
		return address
	}
	forwarded := strings.Split(strings.Join(r.Header[echo.HeaderXForwardedFor], ","), ",")
	for len(forwarded) > 0 && isTrusted(address, proxies) {
		last := strings.TrimSpace(forwarded[len(forwarded)-1])
		if a, err := netip.ParseAddrPort(last); err == nil {
			last = a.Addr().String() // some proxies add the port
		}
		if _, err := netip.ParseAddr(last); err != nil {
			break
		}
		address, forwarded = last, forwarded[:len(forwarded)-1]
	}
	return address
}

func isTrusted(address string, proxies []netip.Prefix) bool {
	a, _ := netip.ParseAddr(address) // no prefix contains the zero Addr
	return slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
}

// limitConnections limits the open connections of a server. One more is accepted, and waits.
// The connections of netutil.LimitListener hide CloseWrite: net/http would reset them after an
// answer to a request that it has not read to the end.
func limitConnections(s *http.Server, most int) {
	slots := make(chan struct{}, most)
	s.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			slots <- struct{}{}
		case http.StateClosed:
			<-slots
		}
	}
}
