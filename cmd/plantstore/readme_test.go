package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"plantstore/internal/readme"
)

// commandLine returns the parser of the command line, which runs nothing.
func commandLine(t *testing.T) *kong.Kong {
	t.Helper()
	parser, err := kong.New(&commands{}, kong.Writers(io.Discard, io.Discard), kong.Exit(func(int) {}), helpVariables())
	if err != nil {
		t.Fatal(err)
	}
	return parser
}

func TestManualHasTheSettings(t *testing.T) {
	t.Parallel()
	all := commandLine(t).Model.Children
	serve := slices.IndexFunc(all, func(n *kong.Node) bool { return n.Name == "serve" })
	var want, got []string
	for _, flag := range all[serve].Flags {
		want = append(want, strings.Join([]string{strings.Join(flag.Envs, ","), "--" + flag.Name, flag.Default}, " "))
	}
	for _, row := range readme.Table(t, "deploy/README.md", "variable") {
		got = append(got, strings.Join(row[:3], " "))
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("variable, flag and default (-command line +deploy/README.md):\n%s", diff)
	}
}

// manuals are the texts that may name our commands and settings.
func manuals(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := fs.WalkDir(os.DirFS(readme.Top(t)), ".", func(name string, entry fs.DirEntry, err error) error {
		if slices.Contains([]string{"README.md", "engines.md"}, path.Base(name)) {
			all[name] = readme.Read(t, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Whoever reads that an engine can't, or not without a step, can look it up.
func TestEveryNoOfAnEngineHasItsSource(t *testing.T) {
	t.Parallel()
	nos := 0
	for _, row := range readme.Table(t, "deploy/engines.md", "engine") {
		for _, cell := range row[1:] {
			kind, _, _ := strings.Cut(cell, ":")
			if !slices.Contains([]string{"yes", "a step", "no", "not looked into"}, kind) {
				t.Errorf("%s: %q is no answer", row[0], kind)
			}
			if kind != "a step" && kind != "no" {
				continue
			}
			nos++
			if !strings.Contains(cell, "](https://") {
				t.Errorf("%s: %q has no link", row[0], cell)
			}
		}
	}
	if nos == 0 {
		t.Error("no engine lacks anything: the test does not find the cells")
	}
}

// A command is named as code: in a sentence, or in a block that shows a shell.
// Named alone it has to exist; with flags or arguments it has to be right.
func TestNamedCommandsAreRight(t *testing.T) {
	t.Parallel()
	command := regexp.MustCompile("(?m)(?:`|^ *|\\$ |migrate )plantstore ([a-z][^`\n]*)|compose run (?:--rm|-T| )*migrate ([a-z][^`\n]*)")
	parser := commandLine(t)
	for manual, text := range manuals(t) {
		seen := 0
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			seen++
			line, _, _ := strings.Cut(m[1]+m[2], " #")
			if err := right(parser, strings.Fields(line)); err != nil {
				t.Errorf("%s says 'plantstore %s': %v", manual, line, err)
			}
		}
		if seen == 0 && path.Dir(manual) == "deploy" {
			t.Errorf("%s names no command: the expression does not find them", manual)
		}
	}
}

func right(parser *kong.Kong, args []string) error {
	node, rest := parser.Model.Node, args
	for len(rest) > 0 {
		i := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == rest[0] })
		if i < 0 {
			break
		}
		node, rest = node.Children[i], rest[1:]
	}
	switch {
	case len(rest) == 0 && node != parser.Model.Node:
		return nil // its name
	case len(rest) == 0 || len(node.Children) > 0 && rest[0] != "--help":
		return errors.New("no such command")
	case rest[0] == "--help":
		return nil
	}
	if slices.ContainsFunc(node.Flags, func(f *kong.Flag) bool { return f.Name == "database-url" }) {
		args = append(args, "--database-url=host=h")
	}
	_, err := parser.Parse(args)
	return err
}

func TestNamedVariablesExist(t *testing.T) {
	t.Parallel()
	known := make(map[string]bool)
	err := kong.Visit(commandLine(t).Model, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok {
			for _, name := range flag.Envs {
				known[name] = true
			}
		}
		return next(nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := readme.Read(t, "docker-compose.yml") + readme.Read(t, "internal/pgtest/server.go") + readme.Read(t, "Makefile") +
		readme.Read(t, "internal/postgres/every_fault_test.go") + readme.Read(t, "internal/server/docs_browser_test.go")
	for manual, text := range manuals(t) {
		for _, name := range regexp.MustCompile(`\bPLANTSTORE_\w+`).FindAllString(text, -1) {
			if !known[name] && !strings.Contains(elsewhere, name) {
				t.Errorf("%s names %s, which nothing reads", manual, name)
			}
		}
	}
}
