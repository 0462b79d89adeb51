package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"plantstore/internal/migrate"
)

// Set by the linker, as in the Makefile, or by identify.
var (
	version = "dev"
	commit  = "unknown"
)

// identify takes version and commit from Go's own build information where the linker set
// nothing, as after "go install".
func identify() {
	info, ok := debug.ReadBuildInfo()
	if !ok || version != "dev" {
		return
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		version = v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			commit = s.Value[:min(len(s.Value), 7)]
		}
	}
}

func versionText() string {
	return fmt.Sprintf("plantstore %s\ncommit     %s\ngo         %s\nmigration  %d", version, commit, runtime.Version(), migrate.Latest())
}

type versionCommand struct{}

// Run prints the version.
func (c *versionCommand) Run(console *console) error {
	_, err := fmt.Fprintln(console.out, versionText())
	return err
}
