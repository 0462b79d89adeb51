package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// adminAnswer is what the operators' handler answers.
func adminAnswer(s *Server, method, target string) (int, string) {
	w := httptest.NewRecorder()
	s.Admin().ServeHTTP(w, httptest.NewRequest(method, target, nil))
	return w.Code, w.Body.String()
}

func TestAdmin(t *testing.T) {
	t.Parallel()
	unready := testConfig()
	unready.Ready = func(context.Context) error { return errors.New("schema is behind: 00007_x.sql is missing") }
	profiled := testConfig()
	profiled.Profiles = true
	tests := []struct {
		name           string
		c              Config
		method, target string
		status         int
		body           string
	}{
		{"alive", testConfig(), "GET", "/livez", 200, "ok\n"},
		{"alive when not ready", unready, "GET", "/livez", 200, "ok\n"},
		{"ready", testConfig(), "GET", "/readyz", 200, "ready\n"},
		{"not ready", unready, "GET", "/readyz", 503, "schema is behind: 00007_x.sql is missing\n"},
		{"HEAD", unready, "HEAD", "/readyz", 503, "schema is behind: 00007_x.sql is missing\n"}, // net/http drops the body
		{"another method", testConfig(), "POST", "/readyz", 405, "Method Not Allowed\n"},
		{"profiles, which nobody asked for", testConfig(), "GET", "/debug/pprof/symbol", 404, "404 page not found\n"},
		{"profiles", profiled, "GET", "/debug/pprof/symbol", 200, "num_symbols: 1\n"},
		{"profiles without the command line, in which a password may be", profiled, "GET", "/debug/pprof/cmdline", 404, "Unknown profile\n"},
		{"the public interface", testConfig(), "DELETE", "/plants/1", 404, "404 page not found\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			status, body := adminAnswer(New(tt.c), tt.method, tt.target)
			if status != tt.status || body != tt.body {
				t.Errorf("%s %s: %d %q, want %d %q", tt.method, tt.target, status, body, tt.status, tt.body)
			}
		})
	}
}

func TestReadinessIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.Ready = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		started := time.Now()
		if status, body := adminAnswer(New(c), "GET", "/readyz"); status != http.StatusServiceUnavailable {
			t.Errorf("/readyz: %d %q, want 503", status, body)
		}
		if took := time.Since(started); took != readyTimeout {
			t.Errorf("/readyz took %v, want %v", took, readyTimeout)
		}
	})
}

// Whoever asks while a look is under way shares the next one. Its answer is about a
// moment after the question, whoever else has gone away meanwhile.
func TestProbersShareALook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		var broken atomic.Bool
		c := testConfig()
		c.Ready = func(ctx context.Context) error {
			looks.Add(1)
			found := broken.Load()
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(300 * time.Millisecond):
			}
			if found {
				return errors.New("broken")
			}
			return nil
		}
		s := New(c)
		var probers sync.WaitGroup
		probe := func(ctx context.Context, want int) {
			probers.Go(func() {
				w := httptest.NewRecorder()
				s.Admin().ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/readyz", nil))
				if w.Code != want {
					t.Errorf("/readyz: %d %q, want %d", w.Code, w.Body, want)
				}
			})
		}
		probe(t.Context(), http.StatusOK)
		synctest.Wait()
		broken.Store(true)
		began := time.Now()
		hasty, leave := context.WithCancel(t.Context())
		probe(hasty, http.StatusServiceUnavailable)
		synctest.Wait()
		leave()
		for range 50 {
			probe(t.Context(), http.StatusServiceUnavailable)
		}
		probers.Wait()
		if got, took := looks.Load(), time.Since(began); got != 2 || took != 600*time.Millisecond {
			t.Errorf("%d looks in %v, want 2 in 600ms", got, took)
		}
		broken.Store(false)
		probe(t.Context(), http.StatusOK)
		probers.Wait()
	})
}
