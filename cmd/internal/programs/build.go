// Package programs builds, starts and ends the programs that cmd/chaos, cmd/drill and cmd/bench
// run: as they are, sabotaged, or with more files.
package programs

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// module is the name of this module.
const module = "plantstore"

// A Spec describes a build of a program.
type Spec struct {
	Package  string            // in this module, as in "cmd/plantstore"
	Race     bool              // with the race detector
	Sabotage string            // one of Sabotages; empty: none
	Added    map[string]string // texts of additional files, by path in the module
	Name     string            // of the program; empty: that of the package and the sabotage
}

// Build builds a program into a folder and returns its path. Programs with different names
// may share a folder. A sabotage that no longer fits the source is an error.
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
	if !slices.Contains(args, "-race") {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as the Makefile builds
	}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(stdout.String()), nil
}
