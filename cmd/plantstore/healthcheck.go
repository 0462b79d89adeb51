package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type healthcheckCommand struct {
	AdminAddr string        `env:"PLANTSTORE_ADMIN_ADDR" default:":9090" help:"Address of the service's operators' listener."`
	Timeout   time.Duration `default:"3s" help:"Longest wait for the answer."`
}

// Validate refuses values that can't work.
func (c *healthcheckCommand) Validate() error {
	if c.Timeout <= 0 {
		return fmt.Errorf("--timeout is %s: it must be longer than 0s", c.Timeout)
	}
	return nil
}

// Run asks /readyz. It is for containers that have no shell and no curl.
func (c *healthcheckCommand) Run(ctx context.Context, console *console) error {
	bad := func(err error) error {
		return &exitError{exitUsage, fmt.Errorf("--admin-addr (PLANTSTORE_ADMIN_ADDR) is %q: %w", c.AdminAddr, err)}
	}
	host, service, err := net.SplitHostPort(c.AdminAddr)
	if err != nil {
		return bad(err)
	}
	port, err := net.LookupPort("tcp", service) // it may have a name, as for who listens there
	if err != nil {
		return bad(err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, strconv.Itoa(port))+"/readyz", nil)
	if err != nil {
		return bad(err)
	}
	// What a proxy or another server says is not the service's word.
	client := &http.Client{
		Transport:     &http.Transport{},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	answer, err := client.Do(request)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("not healthy: nothing listens on %s: is the service running, and is PLANTSTORE_ADMIN_ADDR right?", request.URL.Host)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("not healthy: %s did not answer in %s", request.URL.Host, c.Timeout)
	case err != nil:
		return fmt.Errorf("not healthy: %w", err)
	}
	defer answer.Body.Close()
	reason, err := io.ReadAll(io.LimitReader(answer.Body, 4096))
	if err != nil {
		return fmt.Errorf("not healthy: %w", err)
	}
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusServiceUnavailable:
		return fmt.Errorf("not healthy: %s", strings.TrimSpace(string(reason)))
	default:
		return fmt.Errorf("not healthy: %s answers %s and is no operators' listener: is PLANTSTORE_ADMIN_ADDR right?", request.URL.Host, answer.Status)
	}
	fmt.Fprintln(console.out, "healthy")
	return nil
}
