package server

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTroubleOfConnectionsIsToldOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := newHTTPLog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})))
		told := func() string {
			defer out.Reset()
			return out.String()
		}
		handshake := func(n int) {
			for i := range n {
				log.Printf("http: TLS handshake error from 192.0.2.%d:5000: EOF", i)
			}
		}
		handshake(100)
		if got, want := told(), "level=WARN msg=\"http: TLS handshake error from 192.0.2.0:5000: EOF\" more=0\n"; got != want {
			t.Errorf("of 100 lines: %q, want %q", got, want)
		}
		log.Printf("http: TLS handshake error from 192.0.2.1:5000: remote error: tls: unknown certificate authority")
		if got := told(); !strings.Contains(got, "unknown certificate authority") {
			t.Errorf("of a handshake that failed for another reason: %q, want it", got)
		}
		log.Printf("http: Accept error: accept tcp [::]:8080: too many open files; retrying in 5ms")
		if got := told(); !strings.Contains(got, "too many open files") {
			t.Errorf("of a line of another kind: %q, want it", got)
		}
		for _, panicked := range []string{"one", "another"} {
			log.Printf("http: panic serving 192.0.2.1:5000: %s\ngoroutine 1", panicked)
			if got := told(); !strings.Contains(got, panicked) {
				t.Errorf("of a panic: %q, want it", got)
			}
		}
		for i := range 2 * mostKinds { // as a client may make them up
			log.Printf("http: TLS handshake error from 192.0.2.1:5000: tls: client offered only unsupported versions: [%d]", i)
		}
		if got := strings.Count(told(), "\n"); got > mostKinds {
			t.Errorf("of %d reasons, %d lines, want %d at the most", 2*mostKinds, got, mostKinds)
		}
		time.Sleep(toldEvery)
		handshake(2)
		if got, want := told(), "level=WARN msg=\"http: TLS handshake error from 192.0.2.0:5000: EOF\" more=99\n"; got != want {
			t.Errorf("of 2 lines a minute later: %q, want %q", got, want)
		}
	})
}
