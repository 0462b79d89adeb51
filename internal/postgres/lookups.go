package postgres

import (
	"sync"

	"plantstore/internal/auth"
)

// A lane looks tokens up, one statement at a time: those that wait when it ends
// make up the next. So whatever comes takes one connection, and nobody gets an
// answer that was read before they asked.
type lane struct {
	// read reads tokens from the database. It has a time limit of its own.
	read func([]auth.Digest) (map[auth.Digest]auth.Token, error)

	mu      sync.Mutex
	running bool
	nudged  bool      // read is to run even if nobody waits
	waiting []*lookup // in the order in which they came
	joined  map[auth.Digest]*lookup
}

// A lookup is shared by all who ask for one token while it waits for its turn.
type lookup struct {
	digest auth.Digest
	askers int // guarded by the lane's mutex
	// Once done is closed, err tells whether the database was asked, and found
	// whether it has the token.
	done  chan struct{}
	token auth.Token
	found bool
	err   error
}

// maxLookups bounds the tokens of a statement. Each costs the database about 20 µs.
const maxLookups = 1024

// ask begins a look-up, or joins one that waits.
func (l *lane) ask(digest auth.Digest) *lookup {
	l.mu.Lock()
	defer l.mu.Unlock()
	asked, ok := l.joined[digest]
	if !ok {
		asked = &lookup{digest: digest, done: make(chan struct{})}
		l.waiting = append(l.waiting, asked)
		if l.joined == nil {
			l.joined = make(map[auth.Digest]*lookup)
		}
		l.joined[digest] = asked
	}
	asked.askers++
	l.start()
	return asked
}

// leave takes one asker out. A look-up that nobody waits for is not made.
func (l *lane) leave(asked *lookup) {
	l.mu.Lock()
	defer l.mu.Unlock()
	asked.askers--
}

// nudge makes the lane read soon, whether somebody waits or not.
func (l *lane) nudge() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nudged = true
	l.start()
}

func (l *lane) start() {
	if !l.running {
		l.running = true
		go l.run()
	}
}

func (l *lane) run() {
	for {
		batch, ok := l.next()
		if !ok {
			return
		}
		digests := make([]auth.Digest, len(batch))
		for i, asked := range batch {
			digests[i] = asked.digest
		}
		tokens, err := l.read(digests)
		for _, asked := range batch {
			asked.token, asked.found = tokens[asked.digest]
			asked.err = err
			close(asked.done)
		}
	}
}

// next takes the look-ups of the next statement. If there is nothing to do, the
// lane does not run any more.
func (l *lane) next() (batch []*lookup, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := 0
	for _, asked := range l.waiting {
		if len(batch) == maxLookups {
			break
		}
		taken++
		delete(l.joined, asked.digest)
		if asked.askers > 0 {
			batch = append(batch, asked)
		}
	}
	l.waiting = append([]*lookup(nil), l.waiting[taken:]...)
	l.running = len(batch) > 0 || l.nudged
	l.nudged = false
	return batch, l.running
}
