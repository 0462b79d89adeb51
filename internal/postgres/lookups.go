package postgres

import (
	"sync"

	"plantstore/internal/auth"
)

// A lookupQueue looks tokens up, one statement at a time: those that wait when it ends
// make up the next. So whatever comes takes one connection, and nobody gets an
// answer that was read before they asked.
type lookupQueue struct {
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
	askers int // guarded by the queue's mutex
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
func (q *lookupQueue) ask(digest auth.Digest) *lookup {
	q.mu.Lock()
	defer q.mu.Unlock()
	asked, ok := q.joined[digest]
	if !ok {
		asked = &lookup{digest: digest, done: make(chan struct{})}
		q.waiting = append(q.waiting, asked)
		if q.joined == nil {
			q.joined = make(map[auth.Digest]*lookup)
		}
		q.joined[digest] = asked
	}
	asked.askers++
	q.start()
	return asked
}

// leave takes one asker out. A look-up that nobody waits for is not made.
func (q *lookupQueue) leave(asked *lookup) {
	q.mu.Lock()
	defer q.mu.Unlock()
	asked.askers--
}

// nudge makes the queue read soon, whether somebody waits or not.
func (q *lookupQueue) nudge() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.nudged = true
	q.start()
}

func (q *lookupQueue) start() {
	if !q.running {
		q.running = true
		go q.run()
	}
}

func (q *lookupQueue) run() {
	for {
		batch, ok := q.next()
		if !ok {
			return
		}
		digests := make([]auth.Digest, len(batch))
		for i, asked := range batch {
			digests[i] = asked.digest
		}
		tokens, err := q.read(digests)
		for _, asked := range batch {
			asked.token, asked.found = tokens[asked.digest]
			asked.err = err
			close(asked.done)
		}
	}
}

// next takes the look-ups of the next statement. If there is nothing to do, the
// queue does not run any more.
func (q *lookupQueue) next() (batch []*lookup, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := 0
	for _, asked := range q.waiting {
		if len(batch) == maxLookups {
			break
		}
		taken++
		delete(q.joined, asked.digest)
		if asked.askers > 0 {
			batch = append(batch, asked)
		}
	}
	q.waiting = append([]*lookup(nil), q.waiting[taken:]...)
	q.running = len(batch) > 0 || q.nudged
	q.nudged = false
	return batch, q.running
}
