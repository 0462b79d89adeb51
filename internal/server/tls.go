package server

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// A Certificate is a certificate with its chain, and its key, in two files, in PEM. They are
// read again when they change.
type Certificate struct {
	certFile, keyFile string

	mu      sync.Mutex
	log     *slog.Logger
	checked time.Time
	cert    []byte // the contents of the files
	key     []byte
	pair    *tls.Certificate
	problem string // with the files, as logged last; empty: none
}

const (
	// reloadEvery is how often the files are read while clients connect.
	reloadEvery = time.Second
	// renewBefore: a certificate that has less than a tenth of its lifetime left was not
	// renewed. Renewal programs usually leave a third.
	renewBefore = 10
)

// LoadCertificate reads the two files. Its errors are sentences for an operator.
func LoadCertificate(certFile, keyFile string) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, log: slog.New(slog.DiscardHandler)}
	return c, c.read(time.Now())
}

// read uses the files if they fit. While they are being replaced, they may not.
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
			return fmt.Errorf("the certificate in %s expires at %s, and was not renewed", c.certFile, leaf.NotAfter.UTC().Format(time.RFC3339))
		}
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("%s and %s are not a certificate and its key: %w", c.certFile, c.keyFile, err)
	}
	switch from, until := pair.Leaf.NotBefore, pair.Leaf.NotAfter; {
	case now.Before(from):
		return fmt.Errorf("the certificate in %s is not valid before %s", c.certFile, from.UTC().Format(time.RFC3339))
	case now.After(until):
		return fmt.Errorf("the certificate in %s expired at %s: renew it", c.certFile, until.UTC().Format(time.RFC3339))
	}
	c.cert, c.key, c.pair = cert, key, &pair
	return nil
}

// get returns the certificate for a connection that begins.
func (c *Certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if now.Sub(c.checked) < reloadEvery {
		return c.pair, nil
	}
	c.checked = now
	before, problem := c.pair, ""
	if err := c.read(now); err != nil {
		problem = err.Error()
	}
	switch {
	case problem != "" && problem != c.problem:
		c.log.Warn("the certificate for TLS was not replaced", "reason", problem)
	case c.pair != before:
		c.log.Info("the certificate for TLS was replaced", "not_after", c.pair.Leaf.NotAfter)
	}
	c.problem = problem
	return c.pair, nil
}

// config returns the settings of a server that logs to log.
func (c *Certificate) config(log *slog.Logger) *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = log
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}
}
