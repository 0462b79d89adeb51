package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

// logOf serves one request and returns the log, line by line.
func logOf(t *testing.T, c Config, q request) []map[string]any {
	t.Helper()
	var log bytes.Buffer
	c.Log = slog.New(slog.NewJSONHandler(&log, nil))
	New(c).ask(t, q)
	if strings.Contains(log.String(), secret) {
		t.Errorf("log has a secret:\n%s", &log)
	}
	var lines []map[string]any
	for decoder := json.NewDecoder(&log); ; {
		var line map[string]any
		if err := decoder.Decode(&line); err == io.EOF {
			return lines
		} else if err != nil {
			t.Fatalf("log: %v", err)
		}
		lines = append(lines, line)
	}
}

func TestLogHasOneLineForEachRequest(t *testing.T) {
	t.Parallel()
	returning := func(r plant.Result, err error) Config {
		c := testConfig()
		c.Plants = fakePlants(func(context.Context, plant.Deletion) (plant.Result, error) { return r, err })
		return c
	}
	cause := errors.New(`plant 1 is in the autumn catalogue (SQLSTATE P0001) in function "keep"`)
	token := auth.NewToken()
	line := func(status, code int, outcome string, more map[string]any) map[string]any {
		l := map[string]any{"level": "INFO", "msg": "request", "method": "DELETE", "route": "/plants/:id", "status": float64(status), "error": float64(code),
			"outcome": outcome, "request_id": "r1", "client": "127.0.0.1", "principal": "alice", "plant_id": "1"}
		for k, v := range more {
			l[k] = v
			if v == nil {
				delete(l, k)
			}
		}
		return l
	}
	for _, tt := range []struct {
		name string
		c    Config
		q    request
		want map[string]any
	}{
		{"deleted", returning(plant.Result{Attempts: 1, Batch: 7, Queued: 3 * time.Millisecond}, nil), request{"DELETE", "/plants/1?token=" + secret, []string{asAlice}, ""},
			line(204, 0, "deleted", map[string]any{"attempts": 1., "batch": 7., "queued_us": 3000.})},
		{"replayed after failed attempts", returning(plant.Result{Replayed: true, Attempts: 3, Batch: 1, Failed: []string{"unreachable", "lost"}}, nil), del(),
			line(204, 0, "replayed", map[string]any{"attempts": 3., "batch": 1., "queued_us": 0., "failed_attempts": "unreachable,lost"})},
		{"a recorded refusal", returning(plant.Result{Replayed: true}, plant.ErrNotFound), del(), line(404, 40401, "not_found", map[string]any{"replayed": true})},
		{"refused by a trigger", returning(plant.Result{}, &plant.StoreRuleError{Cause: cause}), del(),
			line(409, 40901, "store_rule", map[string]any{"cause": "refused by a rule of the store: " + cause.Error()})},
		{"a fault of ours", returning(plant.Result{}, errDriver), del(), line(500, 50000, "error", map[string]any{"level": "ERROR", "cause": errDriver.Error()})},
		{"bad token", testConfig(), with("mallory" + secret), line(401, 40101, "invalid_token", map[string]any{"principal": nil, "cause": "invalid token: " + errDriver.Error()})},
		{"scope missing", testConfig(), request{"DELETE", "/plants/1", []string{asBob}, ""}, line(403, 40300, "scope_missing", map[string]any{"principal": "bob", "cause": `scope missing: want plants:delete, got ["plants:read"]`})},
		{"bad id", testConfig(), request{"DELETE", "/plants/%0A%FFx", []string{asAlice}, ""}, line(400, 40001, "bad_id", map[string]any{"plant_id": "\n\uFFFDx"})},
		{"long id", testConfig(), request{"DELETE", "/plants/" + strings.Repeat("x", 3000), []string{asAlice}, ""},
			line(400, 40001, "bad_id", map[string]any{"plant_id": strings.Repeat("x", 64) + "..."})},
		{"token for an id", testConfig(), request{"DELETE", "/plants/" + token, []string{asAlice}, ""}, line(400, 40001, "bad_id", map[string]any{"plant_id": "(a token)"})},
		{"token for a method", testConfig(), request{token, "/plants/1", nil, ""}, line(405, 40500, "bad_method", map[string]any{"method": "(a token)", "principal": nil, "plant_id": nil})},
		{"no route", testConfig(), request{"GET", "/" + secret, nil, ""}, line(404, 40400, "no_route", map[string]any{"method": "GET", "route": "none", "principal": nil, "plant_id": nil})},
		{"page", testConfig(), request{"GET", "/docs", nil, ""}, line(200, 0, "", map[string]any{"method": "GET", "route": "/docs", "principal": nil, "plant_id": nil, "outcome": nil})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.q.headers = append(tt.q.headers, "X-Request-Id: r1")
			lines := logOf(t, tt.c, tt.q)
			if len(lines) != 1 {
				t.Fatalf("%d lines %v, want one", len(lines), lines)
			}
			for _, key := range []string{"time", "duration_us"} {
				if _, ok := lines[0][key]; !ok {
					t.Errorf("line without %s", key)
				}
				delete(lines[0], key)
			}
			if diff := cmp.Diff(tt.want, lines[0]); diff != "" {
				t.Errorf("line (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLogHasTheStackOfAPanicOnce(t *testing.T) {
	t.Parallel()
	c := testConfig()
	c.Plants = fakePlants(func(context.Context, plant.Deletion) (plant.Result, error) { panic("boom") })
	lines := logOf(t, c, del("X-Request-Id: r1"))
	if len(lines) != 2 {
		t.Fatalf("%d lines %v, want one of the panic and one of the request", len(lines), lines)
	}
	got, stack := lines[0], lines[0]["stack"].(string)
	if got["msg"] != "panic" || got["panic"] != "boom" || got["request_id"] != "r1" || !strings.Contains(stack, "TestLogHasTheStack") {
		t.Errorf("first line %v, want the panic with its stack", got)
	}
	if got, want := lines[1]["cause"], "panic: boom"; got != want || lines[1]["stack"] != nil {
		t.Errorf("cause %q and stack %v of the request, want %q and none", got, lines[1]["stack"], want)
	}
}

// A slowReader accepts each Write only when the test allows it.
type slowReader struct {
	let chan struct{} // closed: always
	mu  sync.Mutex
	got []string // one for each Write
}

func (w *slowReader) Write(lines []byte) (int, error) {
	<-w.let
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got = append(w.got, string(lines))
	return len(lines), nil
}

func (w *slowReader) written() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.got)
}

func newBufferedLog() (*slowReader, *LogBuffer, *slog.Logger) {
	reader := &slowReader{let: make(chan struct{})}
	buffer := NewLogBuffer(reader)
	noTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	return reader, buffer, slog.New(buffer.Handler(slog.NewTextHandler(buffer, &slog.HandlerOptions{ReplaceAttr: noTime})))
}

func TestLogBufferWritesManyLinesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader, buffer, log := newBufferedLog()
		close(reader.let)
		start := time.Now()
		log.Info("one")
		log.With("k", "v").Info("two")
		time.Sleep(100*time.Millisecond - 1)
		synctest.Wait()
		if got := reader.written(); len(got) > 0 {
			t.Errorf("written within 100 ms: %q, want it to wait", got)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		log.Info("three")
		log.With("k", "v").WithGroup("g").Warn("four") // at once
		synctest.Wait()
		long := strings.Repeat("x", 64<<10)
		log.Info(long) // which is full, at once
		synctest.Wait()
		log.Info("five")
		buffer.Close()
		want := []string{"level=INFO msg=one\nlevel=INFO msg=two k=v\n", "level=INFO msg=three\nlevel=WARN msg=four k=v\n", "level=INFO msg=" + long + "\n", "level=INFO msg=five\n"}
		if diff := cmp.Diff(want, reader.written()); diff != "" {
			t.Errorf("written (-want +got):\n%s", diff)
		}
		if took := time.Since(start); took != 100*time.Millisecond {
			t.Errorf("it took %s, want 100ms", took)
		}
	})
}

// No request waits for a stalled reader. Lines that don't fit are dropped and counted.
func TestLogBufferDoesNotWaitForItsReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader, buffer, log := newBufferedLog()
		start := time.Now()
		log.Warn("first")
		synctest.Wait() // the first line is being written
		line := strings.Repeat("x", 10_000)
		const lines = 200 // of which 104 fit into a MiB
		for range lines {
			log.Info(line)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("logging took %s, want no time", took)
		}
		close(reader.let)
		synctest.Wait()
		log.Info("last")
		buffer.Close()
		all := strings.Join(reader.written(), "")
		kept := strings.Count(all, line)
		want := fmt.Sprintf("level=WARN msg=\"log lines were lost, as nobody read them in time\" lines=%d\nlevel=INFO msg=last\n", lines-kept)
		if kept != 104 || !strings.HasSuffix(all, want) {
			t.Errorf("%d of %d lines were kept, and the log ends with %q; want 104, and %q", kept, lines, all[max(0, len(all)-200):], want)
		}
	})
}

func TestLogBufferClosesBesideAStalledReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader, buffer, log := newBufferedLog()
		log.Info("line")
		start := time.Now()
		buffer.Close()
		if took := time.Since(start); took != time.Second {
			t.Errorf("Close took %s, want 1s", took)
		}
		close(reader.let)
	})
}
