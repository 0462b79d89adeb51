// Package programs builds this module's programs for the tools that try them,
// cmd/chaos, cmd/drill and cmd/bench: as they are, sabotaged, or with more files. It also finds addresses for
// them. localpg.StartProcess runs them.
package programs

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// module is the name of this module.
const module = "plantstore"

// A Spec says what to build.
type Spec struct {
	Package  string // in this module, as in "cmd/plantstore"
	Race     bool   // with the race detector
	Sabotage string // one of Sabotages; empty: none
	// Added are files that this module does not have, by their paths in it: their texts.
	// A program with such files needs a Name of its own.
	Added map[string]string
	Name  string // of the program; empty: that of the package and the sabotage
}

// Build builds a program into a folder and returns its path there. Programs of
// one package with different sabotages may share a folder.
//
// A sabotage that no longer fits the source is an error.
func Build(ctx context.Context, folder string, s Spec) (path string, err error) {
	edits, err := editsOf(s.Sabotage)
	if err != nil {
		return "", err
	}
	return build(ctx, folder, s, edits)
}

func build(ctx context.Context, folder string, s Spec, edits []edit) (path string, err error) {
	name := cmp.Or(s.Name, strings.Trim(filepath.Base(s.Package)+"-"+s.Sabotage, "-"))
	path = filepath.Join(folder, name)
	args := []string{"build", "-o", path}
	if s.Race {
		args = append(args, "-race")
	}
	if len(edits)+len(s.Added) > 0 {
		root, err := goCommand(ctx, "list", "-m", "-f", "{{.Dir}}", module)
		if err != nil {
			return "", err
		}
		overlay, err := writeOverlay(root, filepath.Join(folder, name+"-source"), edits, s.Added)
		if err != nil {
			return "", fmt.Errorf("change the source of %s: %w", name, err)
		}
		args = append(args, "-overlay", overlay)
	}
	_, err = goCommand(ctx, append(args, module+"/"+s.Package)...)
	return path, err
}

// goCommand runs the go command and returns its output.
func goCommand(ctx context.Context, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(stdout.String()), nil
}
