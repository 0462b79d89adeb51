package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"plantstore/internal/doctor"
)

// exitWarnings says that doctor found warnings only.
const exitWarnings = 3

// doctorTimeout is how long an examination may take.
const doctorTimeout = 2 * time.Minute

type doctorCommand struct {
	ownerFlags     `embed:""`
	Replicas       int  `default:"1" help:"How many instances of the service run: each has a pool."`
	PrivateNetwork bool `env:"PLANTSTORE_PRIVATE_NETWORK" help:"Nobody else is on the network to the database, as between containers of one machine: it need not be encrypted."`
	JSON           bool `name:"json" help:"Print JSON."`
}

// Validate refuses values that can't work.
func (c *doctorCommand) Validate() error {
	if c.Replicas < 1 {
		return fmt.Errorf("--replicas is %d: it must be at least 1", c.Replicas)
	}
	return nil
}

// Run examines the database.
func (c *doctorCommand) Run(ctx context.Context, console *console) error {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	findings := doctor.Examine(ctx, doctor.Target{
		Owner: c.DatabaseURL, Service: c.ServiceURL, OwnerSetting: c.setting, ServiceSetting: c.serviceSetting, Replicas: c.Replicas, PrivateNetwork: c.PrivateNetwork, Limits: doctor.UsualLimits,
	})
	var err error
	if c.JSON {
		err = writeJSON(console.out, findings)
	} else {
		err = writeFindings(console.out, findings)
	}
	if err != nil {
		return err
	}
	switch doctor.Worst(findings) {
	case doctor.Problem:
		return &exitError{code: 1}
	case doctor.Warning:
		return &exitError{code: exitWarnings}
	}
	return nil
}

// writeFindings writes findings for a person, and how many there are.
func writeFindings(w io.Writer, findings []doctor.Finding) error {
	count := make(map[doctor.Grade]int)
	var err error
	printf := func(format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(w, format, args...)
		}
	}
	for _, f := range findings {
		count[f.Grade]++
		printf("%-8s %s: %s\n", f.Grade, f.Check, f.Message)
		if f.Remedy != "" {
			for line := range strings.Lines(f.Remedy + "\n") {
				printf("           %s", line)
			}
		}
	}
	printf("%s, %s\n", counted(count[doctor.Problem], "problem"), counted(count[doctor.Warning], "warning"))
	return err
}
