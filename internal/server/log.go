package server

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// flushEvery and flushSize are when a LogBuffer writes its lines out.
	flushEvery = 100 * time.Millisecond
	flushSize  = 64 << 10
	// maxBuffered limits the lines that wait while the reader of the log stalls.
	maxBuffered = 1 << 20
	// closeTimeout limits how long Close waits for that reader.
	closeTimeout = time.Second
)

// A LogBuffer gathers the lines of a log and writes many at once: every 100 ms, and at
// once after a warning, an error, or 64 KiB. Write never waits. Where nobody reads the log
// and 1 MiB waits, lines are dropped; the log says how many as soon as it goes on.
type LogBuffer struct {
	out           io.Writer
	flush         chan struct{}
	closed, ended chan struct{}
	lost          atomic.Int64

	mu    sync.Mutex
	lines []byte
}

// NewLogBuffer returns a LogBuffer in front of out. Close has to be called at the end.
func NewLogBuffer(out io.Writer) *LogBuffer {
	b := &LogBuffer{out: out, flush: make(chan struct{}, 1), closed: make(chan struct{}), ended: make(chan struct{})}
	go b.run()
	return b
}

// Write implements io.Writer. It takes one line.
func (b *LogBuffer) Write(line []byte) (int, error) {
	b.mu.Lock()
	if len(b.lines)+len(line) > maxBuffered {
		b.lost.Add(1)
	} else {
		b.lines = append(b.lines, line...)
	}
	full := len(b.lines) >= flushSize
	b.mu.Unlock()
	if full {
		b.flushNow()
	}
	return len(line), nil
}

func (b *LogBuffer) flushNow() {
	select {
	case b.flush <- struct{}{}:
	default:
	}
}

func (b *LogBuffer) run() {
	defer close(b.ended)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	var lines []byte
	for last := false; !last; {
		select {
		case <-tick.C:
		case <-b.flush:
		case <-b.closed:
			last = true
		}
		b.mu.Lock()
		lines, b.lines = b.lines, lines[:0]
		b.mu.Unlock()
		if len(lines) > 0 {
			_, _ = b.out.Write(lines) // there is nowhere else to log
		}
	}
}

// Close writes out the remaining lines. It gives up after a second, and is called once.
func (b *LogBuffer) Close() {
	close(b.closed)
	select {
	case <-b.ended:
	case <-time.After(closeTimeout):
	}
}

// Handler wraps h, which has to write to the buffer: warnings and errors are written out at
// once.
func (b *LogBuffer) Handler(h slog.Handler) slog.Handler { return bufferedHandler{h, b} }

type bufferedHandler struct {
	slog.Handler
	buffer *LogBuffer
}

// Handle implements slog.Handler.
func (h bufferedHandler) Handle(ctx context.Context, r slog.Record) error {
	if n := h.buffer.takeLost(); n > 0 {
		lost := slog.NewRecord(r.Time, slog.LevelWarn, "log lines were lost, as nobody read them in time", 0)
		lost.AddAttrs(slog.Int64("lines", n))
		_ = h.Handler.Handle(ctx, lost)
	}
	err := h.Handler.Handle(ctx, r)
	if r.Level >= slog.LevelWarn {
		h.buffer.flushNow()
	}
	return err
}

// takeLost returns how many lines were lost, once there is room to say so.
func (b *LogBuffer) takeLost() int64 {
	if b.lost.Load() == 0 {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.lines) > maxBuffered/2 {
		return 0
	}
	return b.lost.Swap(0)
}

// WithAttrs implements slog.Handler.
func (h bufferedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return bufferedHandler{h.Handler.WithAttrs(attrs), h.buffer}
}

// WithGroup implements slog.Handler.
func (h bufferedHandler) WithGroup(name string) slog.Handler {
	return bufferedHandler{h.Handler.WithGroup(name), h.buffer}
}
