package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
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
		{"profiles, which nobody asked for", testConfig(), "GET", "/debug/pprof/cmdline", 404, "404 page not found\n"},
		{"profiles", profiled, "GET", "/debug/pprof/cmdline", 200, strings.Join(os.Args, "\x00")},
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
