package server

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// A Certificate is what a server speaks TLS with: a certificate, with its chain, and its
// key in two files, in PEM. They are read again when they change.
type Certificate struct {
	certFile, keyFile string

	mu       sync.Mutex
	log      *slog.Logger
	looked   time.Time
	cert     []byte // what is in the files
	key      []byte
	pair     *tls.Certificate
	complain string // why the files are of no use, as was logged; empty if they are
}

const (
	// lookEvery is how often the files are looked at while clients connect.
	lookEvery = time.Second
	// renewBefore is what part of its time a certificate has left, at the least, when it
	// is renewed. Of the usual 90 days, programs that renew leave a third.
	renewBefore = 10
)

// LoadCertificate reads the two files. Its errors are sentences for an operator.
func LoadCertificate(certFile, keyFile string) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, log: slog.New(slog.DiscardHandler)}
	return c, c.read(time.Now())
}

// read takes the files over if they are of use, which they may not be in the middle of
// being replaced.
func (c *Certificate) read(now time.Time) error {
	cert, err := os.ReadFile(c.certFile)
	if err != nil {
		return fmt.Errorf("the certificate for TLS can't be read: %w", err)
	}
	key, err := os.ReadFile(c.keyFile)
	if err != nil {
		return fmt.Errorf("the key for TLS can't be read: %w", err)
	}
	if c.pair != nil && bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		leaf := c.pair.Leaf
		if left := leaf.NotAfter.Sub(now); left < leaf.NotAfter.Sub(leaf.NotBefore)/renewBefore {
			return fmt.Errorf("the certificate in %s is good until %s only, and nobody renewed it", c.certFile, leaf.NotAfter.UTC().Format(time.RFC3339))
		}
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("%s and %s are no certificate and its key: %w", c.certFile, c.keyFile, err)
	}
	switch from, until := pair.Leaf.NotBefore, pair.Leaf.NotAfter; {
	case now.Before(from):
		return fmt.Errorf("the certificate in %s is not valid before %s", c.certFile, from.UTC().Format(time.RFC3339))
	case now.After(until):
		return fmt.Errorf("the certificate in %s is good from %s until %s only: renew it",
			c.certFile, from.UTC().Format(time.RFC3339), until.UTC().Format(time.RFC3339))
	}
	c.cert, c.key, c.pair = cert, key, &pair
	return nil
}

// now returns the certificate for a connection that begins.
func (c *Certificate) now(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if now.Sub(c.looked) < lookEvery {
		return c.pair, nil
	}
	before := c.pair
	err := c.read(now)
	c.looked = now
	complain := ""
	if err != nil {
		complain = err.Error()
	}
	switch {
	case err != nil && complain != c.complain:
		c.log.Warn("the certificate for TLS was not replaced", "reason", complain)
	case c.pair != before:
		c.log.Info("the certificate for TLS was replaced", "not_after", c.pair.Leaf.NotAfter)
	}
	c.complain = complain
	return c.pair, nil
}

// config is for a server that logs to log.
func (c *Certificate) config(log *slog.Logger) *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = log
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.now}
}

// isHTTP2 reports whether a connection that has been of use speaks HTTP/2.
func isHTTP2(conn net.Conn) bool {
	t, ok := conn.(*tls.Conn)
	return ok && t.ConnectionState().NegotiatedProtocol == "h2"
}

// hangUp closes a connection at once. To say good-bye, as TLS does, takes a peer that
// listens.
func hangUp(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	conn.Close()
}
