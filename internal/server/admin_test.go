package server

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// adminAnswer returns the answer of the operators' handler.
func adminAnswer(s *Server, method, target string) (int, string) {
	w := httptest.NewRecorder()
	s.Admin().ServeHTTP(w, httptest.NewRequest(method, target, nil))
	return w.Code, w.Body.String()
}

func TestPagesOfTheOperatorsListener(t *testing.T) {
	t.Parallel()
	profiled := testConfig()
	profiled.Profiles = true
	for _, tt := range []struct {
		name           string
		c              Config
		method, target string
		status         int
		body           string
	}{
		{"alive", testConfig(), "GET", "/livez", 200, "ok\n"},
		{"before the first check", testConfig(), "GET", "/readyz", 503, "the database has not been checked yet\n"},
		{"another method", testConfig(), "POST", "/readyz", 405, "Method Not Allowed\n"},
		{"profiles, off", testConfig(), "GET", "/debug/pprof/symbol", 404, "404 page not found\n"},
		{"profiles", profiled, "GET", "/debug/pprof/symbol", 200, "num_symbols: 1\n"},
		{"no command line, which may have a password", profiled, "GET", "/debug/pprof/cmdline", 404, "Unknown profile\n"},
		{"the public interface", testConfig(), "DELETE", "/plants/1", 404, "404 page not found\n"},
	} {
		if status, body := adminAnswer(New(tt.c), tt.method, tt.target); status != tt.status || body != tt.body {
			t.Errorf("%s: %s %s: %d %q, want %d %q", tt.name, tt.method, tt.target, status, body, tt.status, tt.body)
		}
	}
}

// A notReady is the reason of an error.
type notReady string

func (notReady) Error() string      { return errDriver.Error() }
func (r notReady) NotReady() string { return string(r) }

func TestReadiness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		errHangs := errors.New("the check hangs")
		var current atomic.Pointer[error]
		say := func(err error) { current.Store(&err) }
		var log bytes.Buffer
		c := testConfig()
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		c.Ready = func(ctx context.Context) error {
			if err := *current.Load(); err != errHangs {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		}
		say(nil)
		s := run(t, c)
		for _, tt := range []struct {
			err     error
			status  int
			body    string
			metrics []string
		}{
			{nil, 200, "ready\n", []string{"plantstore_ready 1"}},
			{notReady("unreachable"), 503, errDriver.Error() + "\n", []string{`plantstore_not_ready{reason="unreachable"} 1`, "plantstore_ready 0"}},
			{notReady("schema_behind"), 503, errDriver.Error() + "\n", []string{`plantstore_not_ready{reason="schema_behind"} 1`, "plantstore_ready 0"}},
			{errHangs, 503, "context deadline exceeded\n", []string{`plantstore_not_ready{reason="misconfigured"} 1`, "plantstore_ready 0"}},
			{errDriver, 503, errDriver.Error() + "\n", []string{`plantstore_not_ready{reason="misconfigured"} 1`, "plantstore_ready 0"}},
			{nil, 200, "ready\n", []string{"plantstore_ready 1"}},
		} {
			say(tt.err)
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if status, body := adminAnswer(s.Server, "GET", "/readyz"); status != tt.status || body != tt.body {
				t.Errorf("after %v: /readyz %d %q, want %d %q", tt.err, status, body, tt.status, tt.body)
			}
			got := append(counted(t, s.Server, "plantstore_not_ready"), counted(t, s.Server, "plantstore_ready")...)
			if diff := cmp.Diff(tt.metrics, got); diff != "" {
				t.Errorf("metrics after %v (-want +got):\n%s", tt.err, diff)
			}
		}
		s.stop(t)
		if diff := cmp.Diff([]string{`plantstore_not_ready{reason="shutting_down"} 1`}, counted(t, s.Server, "plantstore_not_ready")); diff != "" {
			t.Errorf("metrics after the end (-want +got):\n%s", diff)
		}
		// Each change is logged once. Errors with the same text count as the same reason.
		if no, yes := strings.Count(log.String(), `msg="not ready"`), strings.Count(log.String(), "msg=ready"); no != 3 || yes != 2 {
			t.Errorf("the log has %d lines of not ready and %d of ready, want 3 and 2:\n%s", no, yes, &log)
		}
	})
}
