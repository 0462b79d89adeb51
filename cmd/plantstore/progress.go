package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"plantstore/internal/migrate"
)

// A progress tells what a run does: one line on standard output for each
// migration that is done, one on standard error for what keeps it waiting. In
// between, a line on a terminal counts the seconds; elsewhere there is one every
// ten seconds.
type progress struct {
	*console
	verb     string
	terminal bool
	quit     chan struct{}
	ticking  sync.WaitGroup

	mu      sync.Mutex
	current string // what runs now, or ""
	began   time.Time
}

func newProgress(console *console, verb string, terminal bool) *progress {
	p := &progress{console: console, verb: verb, terminal: terminal, quit: make(chan struct{})}
	every := 10 * time.Second
	if terminal {
		every = 100 * time.Millisecond
	}
	p.ticking.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-p.quit:
				return
			case <-ticker.C:
				p.mu.Lock()
				p.draw()
				p.mu.Unlock()
			}
		}
	})
	return p
}

// end ends the output. It has to be called.
func (p *progress) end() {
	close(p.quit)
	p.ticking.Wait()
	p.clear()
}

// draw shows the line that does not stay, where there can be such.
func (p *progress) draw() {
	if p.current == "" {
		return
	}
	took := time.Since(p.began)
	if p.terminal {
		fmt.Fprintf(p.err, "\r\x1b[K%s %.1fs", p.current, took.Seconds())
	} else {
		fmt.Fprintf(p.err, "%s has been running for %s\n", p.current, took.Round(time.Second))
	}
}

func (p *progress) clear() {
	if p.terminal {
		fmt.Fprint(p.err, "\r\x1b[K")
	}
}

func (p *progress) notify(e migrate.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	switch e.Kind {
	case migrate.Queued:
		fmt.Fprintf(p.err, "waiting for another run to end: %s\n", blockers(e.Blockers))
	case migrate.Warned:
		fmt.Fprintf(p.err, "warning: %s\n", e.Warning)
	case migrate.Started:
		p.current, p.began = fmt.Sprintf("[%d/%d] %s", e.Number, e.Of, e.Migration.Name), time.Now()
	case migrate.Blocked:
		fmt.Fprintf(p.err, "%s waits for %s, blocked by %s\n", e.Migration.Name, e.Lock, blockers(e.Blockers))
	case migrate.Retrying:
		fmt.Fprintf(p.err, "%s did not get %s and lets others through: attempt %d of %d in %s\n",
			e.Migration.Name, cmp.Or(e.Lock, "its lock"), e.Attempt+1, e.Attempts, e.Pause.Round(time.Millisecond))
	case migrate.Finished:
		p.current = ""
		fmt.Fprintf(p.out, "%s %s (%s)\n", p.verb, e.Migration.Name, e.Took.Round(time.Millisecond))
	}
	if p.terminal {
		p.draw()
	}
}

func blockers(all []migrate.Blocker) string {
	s := make([]string, len(all))
	for i, b := range all {
		s[i] = b.String()
	}
	return strings.Join(s, "; and by ")
}

// statusWidth is how many characters a statusLine has at the most, without the time
// behind them: a line that a terminal of 80 columns breaks can't be taken away.
const statusWidth = 68

// A statusLine is the last line of a terminal while a command runs that takes longer
// than a second: what it is at, and for how long. It does not stay. What else is
// written takes its place, and it comes back below.
type statusLine struct {
	terminal io.Writer
	name     string
	began    time.Time
	quit     chan struct{}
	ended    sync.Once
	ticking  sync.WaitGroup

	mu     sync.Mutex
	at     string
	drawn  bool
	within bool // a line that is not whole yet, such as a question
}

func newStatusLine(terminal io.Writer, name string) *statusLine {
	l := &statusLine{terminal: terminal, name: name, began: time.Now(), quit: make(chan struct{})}
	l.ticking.Go(func() {
		ticker := time.NewTicker(200 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-l.quit:
				return
			case <-ticker.C:
				l.mu.Lock()
				if took := time.Since(l.began); took >= time.Second && !l.within {
					l.drawn = true
					text := []rune(l.name + l.at)
					fmt.Fprintf(l.terminal, "\r\x1b[K%s %.1fs", string(text[:min(len(text), statusWidth)]), took.Seconds())
				}
				l.mu.Unlock()
			}
		}
	})
	return l
}

// say sets what the command is at. A question that was open is answered now.
func (l *statusLine) say(at string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at, l.within = ": "+at+",", false
}

// end takes the line away for good. It has to be called, and may be called again.
func (l *statusLine) end() {
	l.ended.Do(func() { close(l.quit) })
	l.ticking.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clear()
}

func (l *statusLine) clear() {
	if l.drawn {
		l.drawn = false
		fmt.Fprint(l.terminal, "\r\x1b[K")
	}
}

// over returns a writer to w, which may be the same terminal.
func (l *statusLine) over(w io.Writer) io.Writer { return overStatus{l, w, isTerminal(w)} }

type overStatus struct {
	line     *statusLine
	w        io.Writer
	terminal bool
}

func (o overStatus) Write(p []byte) (int, error) {
	if !o.terminal {
		return o.w.Write(p) // it may take long, and the line goes on
	}
	o.line.mu.Lock()
	defer o.line.mu.Unlock()
	o.line.clear()
	o.line.within = len(p) > 0 && p[len(p)-1] != '\n'
	return o.w.Write(p)
}
