package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"plantstore/internal/migrate"
)

// version is that of the release. After a release it gets the next number with "-dev", and
// builds in between differ by their commit. The Makefile reads this line.
const version = "1.0.0"

// commit is set by the linker, as in the Makefile, or by identify.
var commit = unknownCommit

const unknownCommit = "unknown"

// identify takes the commit from Go's own build information where the linker set none, as
// after "go install".
func identify() {
	info, ok := debug.ReadBuildInfo()
	if !ok || commit != unknownCommit {
		return
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
