package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// A console is where a command reads and writes.
type console struct {
	in       io.Reader
	out, err io.Writer
	warnings []string // about variables, for a log
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// newTable returns a writer that aligns tab-separated columns below a heading.
func newTable(w io.Writer, heading ...string) *tabwriter.Writer {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join(heading, "\t"))
	return table
}

// shown returns a text from outside for a terminal. A text with invisible characters is
// quoted and escaped.
func shown(s string) string {
	hidden := func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
	if strings.HasPrefix(s, `"`) || strings.ContainsFunc(s, hidden) {
		return strconv.Quote(s)
	}
	return s
}

// escaped returns indented JSON with the characters escaped that a terminal would obey or hide.
func escaped(indented string) string {
	var b strings.Builder
	for _, r := range indented {
		if r == '\n' || unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}

// date formats a time, or returns zero if there is none.
func date(t time.Time, zero string) string {
	if t.IsZero() {
		return zero
	}
	return t.UTC().Format(time.RFC3339)
}

// counted returns "1 plant" or "2 plants".
func counted[N int | int64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// confirm asks a question on a terminal. It returns nil for yes, and otherwise refused.
func (c *console) confirm(ctx context.Context, question string, refused error) error {
	noAnswer := &exitError{exitUsage, errors.New("standard input is not a terminal, so nobody can confirm: use --yes")}
	if file, ok := c.in.(*os.File); ok { // a test has another reader
		if info, err := file.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
			return noAnswer
		}
	}
	fmt.Fprintf(c.err, "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() {
		line, err := bufio.NewReader(c.in).ReadString('\n')
		if err != nil { // /dev/null passes for a terminal
			close(answer)
			return
		}
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		return refused
	case line, ok := <-answer:
		switch {
		case !ok:
			return noAnswer
		case line == "y" || line == "yes":
			return nil
		}
		return refused
	}
}
