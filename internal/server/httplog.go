package server

import (
	"log"
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	// toldEvery is how often net/http is heard about one kind of trouble.
	toldEvery = time.Minute
	// mostKinds bounds how many kinds there are.
	mostKinds = 64
)

// An httpLog takes the lines that net/http writes of its own, mostly of connections. Anybody
// can bring those about, as often as they like and without a token, and a load balancer that
// looks whether a port is open does so each second. So of each kind there is one line in
// toldEvery, with how many there were since the one before.
type httpLog struct {
	log *slog.Logger

	mu    sync.Mutex
	kinds map[string]*httpTrouble
}

// httpTrouble is a kind of lines.
type httpTrouble struct {
	told time.Time
	more int // untold ones since then
}

// newHTTPLog returns a logger for http.Server.
func newHTTPLog(to *slog.Logger) *log.Logger {
	return log.New(&httpLog{log: to, kinds: make(map[string]*httpTrouble)}, "", 0)
}

// Write takes what is one line as a rule. Its first three words are its kind: no client writes
// those. So is the reason behind the last colon of a handshake that failed, as whoever looks
// for a bad certificate must not miss it among connections that say nothing. Clients have a
// part in that: where there are many, the three words have to do. Several lines are a panic,
// and always told.
func (l *httpLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	words := strings.Fields(text)
	kind := strings.Join(words[:min(3, len(words))], " ")
	l.mu.Lock()
	if reason := kind + text[strings.LastIndexByte(text, ':')+1:]; kind == "http: TLS handshake" && (len(l.kinds) < mostKinds || l.kinds[reason] != nil) {
		kind = reason
	}
	of, known := l.kinds[kind]
	if !known {
		of = new(httpTrouble)
		l.kinds[kind] = of
	}
	now, more := time.Now(), of.more
	tell := now.Sub(of.told) >= toldEvery || strings.Contains(text, "\n")
	if tell {
		*of = httpTrouble{told: now}
	} else {
		of.more++
	}
	l.mu.Unlock()
	if tell {
		l.log.Warn(text, "more", more)
	}
	return len(line), nil
}
