package main

import "log/slog"

// devAddr and devAdminAddr are where dev listens by default.
const devAddr, devAdminAddr = "127.0.0.1:8080", "127.0.0.1:9090"

// A devCommand has the same flags on every system. Where dev can't run, it prints the reason.
type devCommand struct {
	Addr       string     `env:"PLANTSTORE_ADDR" help:"Address of the public listener. Default: ${dev_addr}, or any free port when that is taken."`
	AdminAddr  string     `env:"PLANTSTORE_ADMIN_ADDR" help:"Address of the operators' listener. Default: ${dev_admin_addr}, or any free port when that is taken."`
	LogFormat  string     `env:"PLANTSTORE_LOG_FORMAT" default:"text" enum:"json,text" help:"Log format: json or text."`
	LogLevel   slog.Level `env:"PLANTSTORE_LOG_LEVEL" default:"info" help:"Least severe log entry: debug, info, warn or error."`
	limitFlags `embed:""`
}

// AfterApply rejects values that cannot work.
func (c *devCommand) AfterApply() error { return c.limitFlags.check() }
