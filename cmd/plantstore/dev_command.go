package main

import "log/slog"

// A devCommand can be given everywhere, also where it can't run: then it says so, and
// nothing of its flags.
type devCommand struct {
	Addr        string     `env:"PLANTSTORE_ADDR" help:"Address of the public listener. Default: ${dev_addr}, or any free port when that is taken."`
	AdminAddr   string     `env:"PLANTSTORE_ADMIN_ADDR" help:"Address of the operators' listener. Default: ${dev_admin_addr}, or any free port when that is taken."`
	LogFormat   logFormat  `env:"PLANTSTORE_LOG_FORMAT" default:"text" help:"Log format: json or text."`
	LogLevel    slog.Level `env:"PLANTSTORE_LOG_LEVEL" default:"info" help:"Least severe log entry: debug, info, warn or error."`
	serveTuning `embed:""`
}

// Validate refuses values that can't work.
func (c *devCommand) Validate() error {
	if err := c.serveTuning.Validate(); err != nil {
		return err
	}
	return apart(c.Addr, c.AdminAddr)
}
