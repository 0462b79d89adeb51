package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// readyTimeout bounds the check behind /readyz, from the question on.
const readyTimeout = time.Second

var errDraining = errors.New("shutting down")

// Admin returns the handler of the operators' listener: /livez says that the
// process runs, /readyz whether it can serve and if not why, /metrics is for
// Prometheus, and /debug/pprof/ for Go's profiler, if it was asked for.
func (s *Server) Admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := s.ready(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, "ready\n")
	})
	if s.Profiles {
		// And all that it lists but these, and but the command line: a password may be in that.
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	return mux
}

func (s *Server) ready(ctx context.Context) error {
	if s.draining.Load() {
		return errDraining
	}
	l := s.looks.join(s.Ready)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-l.done:
		return l.err
	}
}

// looks are those behind /readyz, one at a time: however many ask, they take one
// connection. Who asks while one is under way shares the next, so that no answer is older
// than its question.
type looks struct {
	mu      sync.Mutex
	running bool
	next    *look // nil unless somebody waits
}

// A look has its result in err once done is closed. It does not end with who asks: others
// wait for the same.
type look struct {
	until time.Time
	done  chan struct{}
	err   error
}

// join begins a look, or joins one that waits.
func (ls *looks) join(ready func(context.Context) error) *look {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.next == nil {
		ls.next = &look{until: time.Now().Add(readyTimeout), done: make(chan struct{})}
	}
	if !ls.running {
		ls.running = true
		go ls.run(ready)
	}
	return ls.next
}

func (ls *looks) run(ready func(context.Context) error) {
	for {
		ls.mu.Lock()
		l := ls.next
		ls.next, ls.running = nil, l != nil
		ls.mu.Unlock()
		if l == nil {
			return
		}
		ctx, cancel := context.WithDeadline(context.Background(), l.until)
		l.err = ready(ctx)
		cancel()
		close(l.done)
	}
}

// A NotReadyError is why requests can't be served, in a word for the metrics.
type NotReadyError struct {
	Reason string // one of notReadyReasons
	Err    error  // a sentence for an operator
}

func (e *NotReadyError) Error() string { return e.Err.Error() }

const (
	// watchEvery is how often the readiness is looked at for log and metrics, and
	// watchTimeout bounds each look.
	watchEvery   = time.Second
	watchTimeout = 5 * time.Second
)

// watch shows in the metrics whether the service is ready. It logs when it becomes so
// and, while it is not, why: again only when the reason changes. It returns when ctx
// ends: the service drains then.
func (s *Server) watch(ctx context.Context) {
	defer s.metrics.readiness(reasonDraining)
	last := "unknown"
	for {
		once, cancel := context.WithTimeout(ctx, watchTimeout)
		err := s.Ready(once)
		cancel()
		if ctx.Err() != nil {
			return
		}
		reason, text := "", ""
		if err != nil {
			reason, text = reasonHindered, err.Error()
			if e, ok := errors.AsType[*NotReadyError](err); ok {
				reason = e.Reason
			}
		}
		s.metrics.readiness(reason)
		switch {
		case err == nil && last != "":
			s.Log.Info("ready")
		case err != nil && text != last:
			s.Log.Warn("not ready", "reason", text)
		}
		last = text
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchEvery):
		}
	}
}
