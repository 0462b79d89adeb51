package main

import (
	"fmt"
	"runtime"

	"plantstore/internal/migrate"
)

type versionCommand struct{}

// Run prints what this is.
func (c *versionCommand) Run(console *console) error {
	fmt.Fprintf(console.out, "plantstore %s\ncommit     %s\ngo         %s\nmigration  %d\n",
		version, commit, runtime.Version(), migrate.Latest())
	return nil
}
