package main

import (
	"errors"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	gocmp "github.com/google/go-cmp/cmp"

	"plantstore/internal/readme"
)

// commandLine returns the parser of the command line, which runs nothing.
func commandLine(t *testing.T, options ...kong.Option) *kong.Kong {
	t.Helper()
	parser, err := kong.New(&commands{}, append(options, kong.Writers(io.Discard, io.Discard), kong.Exit(func(int) {}), helpVariables())...)
	if err != nil {
		t.Fatal(err)
	}
	return parser
}

// settingsManual is where the table of settings is.
const settingsManual = "deploy/docs/configuration.md"

func TestManualListsEverySetting(t *testing.T) {
	t.Parallel()
	var want, got []string
	for _, flag := range serveFlags(t) {
		want = append(want, strings.Join([]string{strings.Join(flag.Envs, ","), "--" + flag.Name, flag.Default}, " "))
	}
	for _, row := range readme.Table(t, settingsManual, "variable") {
		got = append(got, strings.Join(row[:3], " "))
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("variable, flag and default (-command line +%s):\n%s", settingsManual, diff)
	}
}

// A command is named as code: in a sentence, or in a block that shows a shell.
// Without flags or arguments the command has to exist. With them, they have to be valid.
func TestCommandsInManualsAreValid(t *testing.T) {
	t.Parallel()
	command := regexp.MustCompile("(?m)(?:`|^ *|\\$ |migrate )plantstore ([a-z][^`\n]*)|compose run (?:--rm|-T| )*migrate ([a-z][^`\n]*)")
	parser, all := commandLine(t), 0
	for manual, text := range readme.Manuals(t) {
		if path.Base(manual) == "CHANGELOG.md" {
			continue // of earlier versions, too
		}
		seen := 0
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			seen++
			line, _, _ := strings.Cut(m[1]+m[2], " #")
			line, _, _ = strings.Cut(line, " > ")
			if err := right(parser, strings.Fields(line)); err != nil {
				t.Errorf("%s says 'plantstore %s': %v", manual, line, err)
			}
		}
		all += seen
	}
	if all == 0 {
		t.Error("no manual names a command: the expression does not find them")
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
