package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"plantstore/internal/migrate"
	"plantstore/internal/postgres"
)

// A console is where a command writes.
type console struct {
	out, err io.Writer
	nowhere  bool        // whether out throws away what is written
	warnings []string    // about how it was called, for a log
	line     *statusLine // nil where there is no terminal, or the command tells itself what it is at
}

// say tells at a terminal what the command is at.
func (c *console) say(format string, args ...any) {
	if c.line != nil {
		c.line.say(fmt.Sprintf(format, args...))
	}
}

// said ends what say tells: from now on the command tells in another way what it is at.
func (c *console) said() {
	if c.line != nil {
		c.line.end()
	}
}

// errUnread is why a command ended whose output goes to a program that has ended.
var errUnread = errors.New("nobody reads the log any more")

// untilUnread returns a console, and a context that ends with ctx, or with errUnread
// once something is written to the console that nobody reads any more. Until the
// process ends, such a write is an error and not its death (os/signal, SIGPIPE).
func untilUnread(ctx context.Context, c *console) (context.Context, *console) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, end := context.WithCancelCause(ctx)
	watch := func(w io.Writer) io.Writer {
		return watched{w, func(err error) {
			if errors.Is(err, syscall.EPIPE) {
				end(errUnread)
			}
		}}
	}
	return ctx, &console{out: watch(c.out), err: watch(c.err), nowhere: c.nowhere, warnings: c.warnings, line: c.line}
}

// A watched writer calls failed with each error that it meets.
type watched struct {
	io.Writer
	failed func(error)
}

func (w watched) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		w.failed(err)
	}
	return n, err
}

// explained is err in words for an operator, where the database's URL comes from
// setting. A URL that can't be read is a bad setting.
func explained(err error, setting string) error {
	if postgres.IsUnusable(err) {
		return &exitError{exitUsage, errors.New(postgres.ExplainFor(err, setting))}
	}
	if e, ok := errors.AsType[*migrate.InterruptedError](err); ok {
		why := "interrupted"
		if !errors.Is(e.Err, context.Canceled) {
			why = "the connection was lost (" + postgres.ExplainFor(e.Err, setting) + ")"
		}
		return fmt.Errorf("%s: migration %s is %s; see 'plantstore migrate status', and run the same again to go on", why, e.Name, e.State)
	}
	if e, ok := errors.AsType[*migrate.HinderedError](err); ok {
		return fmt.Errorf("something is in the way, and nothing was changed\n%s", strings.TrimSuffix(troubleText(e.Troubles), "\n"))
	}
	failed, ok := errors.AsType[*migrate.FailedError](err)
	if !ok {
		return errors.New(postgres.ExplainFor(err, setting))
	}
	if e, ok := errors.AsType[*migrate.BlockedError](err); ok {
		return fmt.Errorf("%s: %w; end what is in the way, or try again with a larger --lock-attempts", failed.Where(), e)
	}
	return fmt.Errorf("%s: %s", failed.Where(), postgres.ExplainFor(failed.Err, setting))
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// newTable returns a writer that lines up tab-separated columns, with its
// heading written.
func newTable(w io.Writer, heading ...any) *tabwriter.Writer {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, h := range heading {
		if i > 0 {
			fmt.Fprint(table, "\t")
		}
		fmt.Fprint(table, h)
	}
	fmt.Fprintln(table)
	return table
}

// shown is what others wrote, for a person: in quotes, with what is no visible
// character escaped, unless it is plain.
func shown(s string) string {
	hidden := func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
	if strings.HasPrefix(s, `"`) || strings.ContainsFunc(s, hidden) {
		return strconv.Quote(s)
	}
	return s
}

// date is a time for a person, or zero's text when there is none.
func date(t time.Time, zero string) string {
	if t.IsZero() {
		return zero
	}
	return t.UTC().Format(time.RFC3339)
}

// counted is "1 plant", "2 plants".
func counted[N int | int64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// thousands is "1,234,567".
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// byteSize is "1.43 MB".
func byteSize(n int64) string {
	size, unit := float64(n)/1024, "kB"
	for _, larger := range []string{"MB", "GB", "TB"} {
		if size < 999.5 { // which would be written as 1e+03
			break
		}
		size, unit = size/1024, larger
	}
	return fmt.Sprintf("%.3g %s", size, unit)
}

// isTerminal reports whether lines written to w can be written over.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// isNowhere reports whether w throws away what is written to it. Go opens the null device
// for a standard output that was closed when the program began.
func isNowhere(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	null, nullErr := os.Stat(os.DevNull)
	return err == nil && nullErr == nil && os.SameFile(info, null)
}

var errNobody = &exitError{exitUsage, errors.New("nobody is at standard input to agree: use --yes")}

// confirm asks and returns nil for a yes, otherwise the error refused. It is an
// error, too, when nobody is there to be asked.
func confirm(ctx context.Context, out io.Writer, question string, refused error) error {
	info, err := os.Stdin.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return errNobody
	}
	return ask(ctx, os.Stdin, out, question, refused)
}

// ask is confirm for whoever answers at in.
func ask(ctx context.Context, in io.Reader, out io.Writer, question string, refused error) error {
	fmt.Fprintf(out, "%s [y/N] ", question)
	answer := make(chan error, 1)
	go func() {
		line, err := bufio.NewReader(in).ReadString('\n')
		switch {
		case err != nil:
			answer <- errNobody
		case !isYes(line):
			answer <- refused
		default:
			answer <- nil
		}
	}()
	select {
	case <-ctx.Done():
		return refused
	case err := <-answer:
		return err
	}
}

func isYes(line string) bool {
	s := strings.ToLower(strings.TrimSpace(line))
	return s == "y" || s == "yes"
}
