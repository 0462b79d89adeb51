//go:build !unix

package main

import "errors"

// Run returns an error with the systems on which dev runs.
func (c *devCommand) Run() error {
	return errors.New("dev needs a Unix system, such as Linux, macOS or WSL: its private PostgreSQL listens on a Unix socket; with a PostgreSQL elsewhere, use 'plantstore serve'")
}
