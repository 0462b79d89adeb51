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

// identify takes version and commit from what Go itself puts into a program, where the
// linker was told nothing: after "go install" and "go build".
func identify() {
	if info, ok := debug.ReadBuildInfo(); ok && version == "dev" {
		version, commit = builtFrom(info, version, commit)
	}
}

// builtFrom returns the version and commit that Go knows of, or else what it is given.
func builtFrom(info *debug.BuildInfo, version, commit string) (string, string) {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		version = v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			commit = s.Value[:min(len(s.Value), 7)]
		}
	}
	return version, commit
}

// versionText is what this program is.
func versionText() string {
	return fmt.Sprintf("plantstore %s\ncommit     %s\ngo         %s\nmigration  %d",
		version, commit, runtime.Version(), migrate.Latest())
}

type versionCommand struct{}

// Run prints what this is.
func (c *versionCommand) Run(console *console) error {
	fmt.Fprintln(console.out, versionText())
	return nil
}
