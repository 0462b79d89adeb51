package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

type healthcheckCommand struct {
	AdminAddr string        `env:"PLANTSTORE_ADMIN_ADDR" default:":9090" help:"Address of the service's operators' listener."`
	Timeout   time.Duration `default:"3s" help:"Longest wait for the answer."`
}

// Run asks /readyz. It is for containers that have no shell and no curl.
func (c *healthcheckCommand) Run(ctx context.Context, console *console) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.AdminAddr+"/readyz", nil)
	if err != nil {
		return &exitError{exitUsage, fmt.Errorf("--admin-addr (PLANTSTORE_ADMIN_ADDR) is %q: %w", c.AdminAddr, err)}
	}
	client := &http.Client{Transport: &http.Transport{}} // without the proxy of HTTP_PROXY
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("not healthy: %w: is the service running, and is --admin-addr (PLANTSTORE_ADMIN_ADDR) right?", err)
	}
	defer answer.Body.Close()
	reason, err := io.ReadAll(answer.Body)
	switch {
	case err != nil:
		return fmt.Errorf("not healthy: %w", err)
	case answer.StatusCode == http.StatusServiceUnavailable:
		return fmt.Errorf("not healthy: %s", strings.TrimSpace(string(reason)))
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("not healthy: %s answers %s: is --admin-addr (PLANTSTORE_ADMIN_ADDR) that of the operators' listener?", request.URL.Host, answer.Status)
	}
	fmt.Fprintln(console.out, "healthy")
	return nil
}
